/* SPDX-License-Identifier: Apache-2.0 */
/* Formats and parses dates of S3. */
#include "s3/date.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DAY_S 86400

struct civil {
	int year;
	int month; /* from 1 */
	int day;
	int hour;
	int minute;
	int second;
};

/*
 * Days since 1970-01-01, and back. Years begin in March, so that the leap day is the last one; eras of 400 years have
 * 146,097 days.
 */
static int64_t days_of(int year, int month, int day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t era = y / 400;
	int64_t of_era = y % 400;
	int64_t of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;

	return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static void civil_of(uint64_t days, struct civil *ret)
{
	uint64_t z = days + 719468;
	uint64_t era = z / 146097;
	uint64_t day_of_era = z % 146097;
	uint64_t year =
		(day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	uint64_t of_year = day_of_era - (365 * year + year / 4 - year / 100);
	uint64_t month = (5 * of_year + 2) / 153;

	ret->day = (int)(of_year - (153 * month + 2) / 5 + 1);
	ret->month = (int)(month < 10 ? month + 3 : month - 9);
	ret->year = (int)(year + era * 400) + (ret->month <= 2);
}

void ckpt_s3_date(uint64_t unix_s, char ret_date[CKPT_S3_DATE_SIZE])
{
	unsigned second = (unsigned)(unix_s % DAY_S);
	struct civil c;

	CKPT_ASSERT(unix_s <= CKPT_S3_TIME_MAX);
	civil_of(unix_s / DAY_S, &c);
	(void)snprintf(ret_date, CKPT_S3_DATE_SIZE, "%04d%02d%02dT%02u%02u%02uZ", c.year, c.month,
		c.day, second / 3600, second / 60 % 60, second % 60);
}

static bool leap(int year)
{
	return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* `offset_s` is local time minus UTC. */
static bool to_unix(const struct civil *c, int offset_s, uint64_t *ret_unix_s)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	int64_t seconds;

	if (c->year < 1970 || c->month < 1 || c->month > 12 || c->day < 1)
		return false;
	if (c->day > days[c->month - 1] + (c->month == 2 && leap(c->year)))
		return false;
	/* 60: a leap second, which in Unix time is the first of the next minute. */
	if (c->hour > 23 || c->minute > 59 || c->second > 60)
		return false;
	seconds = days_of(c->year, c->month, c->day) * DAY_S + (int64_t)c->hour * 3600 +
		  (int64_t)c->minute * 60 + c->second - offset_s;
	if (seconds < 0 || seconds > (int64_t)CKPT_S3_TIME_MAX)
		return false;
	*ret_unix_s = (uint64_t)seconds;
	return true;
}

/* Parses exactly `count` digits. */
static bool digits(const char **at, int count, int *ret_value)
{
	int value = 0;

	for (int i = 0; i < count; i++) {
		if ((*at)[i] < '0' || (*at)[i] > '9')
			return false;
		value = value * 10 + ((*at)[i] - '0');
	}
	*at += count;
	*ret_value = value;
	return true;
}

static bool take(const char **at, const char *text)
{
	size_t length = strlen(text);

	if (strncasecmp(*at, text, length) != 0)
		return false;
	*at += length;
	return true;
}

static bool month_name(const char **at, int *ret_month)
{
	static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

	for (int i = 0; i < 12; i++) {
		if (strncasecmp(*at, names + 3 * (size_t)i, 3) == 0) {
			*at += 3;
			*ret_month = i + 1;
			return true;
		}
	}
	return false;
}

static bool clock_time(const char **at, struct civil *c)
{
	return digits(at, 2, &c->hour) && take(at, ":") && digits(at, 2, &c->minute) &&
	       take(at, ":") && digits(at, 2, &c->second);
}

/* 06 Nov 1994 08:49:37 GMT */
static bool imf(const char *at, struct civil *c)
{
	return digits(&at, 2, &c->day) && take(&at, " ") && month_name(&at, &c->month) &&
	       take(&at, " ") && digits(&at, 4, &c->year) && take(&at, " ") && clock_time(&at, c) &&
	       take(&at, " GMT") && *at == 0;
}

/* 06-Nov-94 08:49:37 GMT: in the 1900s if the year begins with 7, 8 or 9. */
static bool rfc850(const char *at, struct civil *c)
{
	if (!(digits(&at, 2, &c->day) && take(&at, "-") && month_name(&at, &c->month) &&
		    take(&at, "-") && digits(&at, 2, &c->year) && take(&at, " ") &&
		    clock_time(&at, c) && take(&at, " GMT") && *at == 0))
		return false;
	c->year += c->year >= 70 ? 1900 : 2000;
	return true;
}

/* Nov  6 08:49:37 1994 */
static bool asctime_form(const char *at, struct civil *c)
{
	if (!month_name(&at, &c->month) || !take(&at, " "))
		return false;
	if (!(take(&at, " ") ? digits(&at, 1, &c->day) : digits(&at, 2, &c->day)))
		return false;
	return take(&at, " ") && clock_time(&at, c) && take(&at, " ") && digits(&at, 4, &c->year) &&
	       *at == 0;
}

bool ckpt_s3_date_http(const char *text, uint64_t *ret_unix_s)
{
	struct civil c = {0};
	size_t day = strcspn(text, ", "); /* skips the day of the week */

	if (day < 3 || day > 9 || text[day] == 0)
		return false;
	if (text[day] == ',') {
		if (text[day + 1] != ' ')
			return false;
		return (imf(text + day + 2, &c) || rfc850(text + day + 2, &c)) &&
		       to_unix(&c, 0, ret_unix_s);
	}
	return asctime_form(text + day + 1, &c) && to_unix(&c, 0, ret_unix_s);
}

/* Z or +hh:mm; the colon is optional. */
static bool offset(const char *at, int *ret_seconds)
{
	int hours;
	int minutes;
	int sign = *at == '-' ? -1 : 1;

	*ret_seconds = 0;
	if (take(&at, "Z"))
		return *at == 0;
	if (!take(&at, "+") && !take(&at, "-"))
		return false;
	if (!digits(&at, 2, &hours))
		return false;
	(void)take(&at, ":");
	if (!digits(&at, 2, &minutes) || *at || hours > 23 || minutes > 59)
		return false;
	*ret_seconds = sign * (hours * 3600 + minutes * 60);
	return true;
}

bool ckpt_s3_date_iso(const char *text, uint64_t *ret_unix_s)
{
	struct civil c = {0};
	const char *at = text;
	int seconds;

	if (!(digits(&at, 4, &c.year) && take(&at, "-") && digits(&at, 2, &c.month) &&
		    take(&at, "-") && digits(&at, 2, &c.day) && take(&at, "T") &&
		    clock_time(&at, &c)))
		return false;
	if (*at == '.') {
		size_t fraction = strspn(at + 1, "0123456789");

		if (fraction == 0)
			return false;
		at += 1 + fraction;
	}
	return offset(at, &seconds) && to_unix(&c, seconds, ret_unix_s);
}
