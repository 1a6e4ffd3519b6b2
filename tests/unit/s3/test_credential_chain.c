/* SPDX-License-Identifier: Apache-2.0 */
/* Where keys come from: the first that is configured; what is half configured ends it with words. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "key_rig.h"
#include "s3/credential_chain.h"

static struct key_rig rig;
static struct ckpt_s3_credential_chain source;

static int setup(void **state)
{
	(void)state;
	key_rig_make(&rig);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	key_rig_close(&rig, "CANARY");
	return 0;
}

static int find(void)
{
	struct ckpt_s3_profiles profiles;
	int r;

	ckpt_s3_settings_clear(&rig.settings);
	ckpt_s3_environ_clear(&rig.vars);
	ckpt_error_clear(&rig.err);
	assert_int_equal(ckpt_s3_environ_take(rig.lines, &rig.err, &rig.vars), 0);
	assert_int_equal(
		ckpt_s3_settings_resolve(&rig.options, &rig.vars, &rig.err, &rig.settings), 0);
	assert_int_equal(ckpt_s3_profiles_read(&rig.vars, &rig.err, &profiles), 0);
	r = ckpt_s3_credential_chain_find(&rig.vars, &rig.settings, &profiles, &rig.err, &source);
	ckpt_s3_profiles_clear(&profiles);
	assert_null(strstr(rig.err.message, "CANARY"));
	assert_null(strstr(source.notes, "CANARY"));
	assert_null(strstr(source.from, "CANARY"));
	return r;
}

static void check_found(enum ckpt_s3_credential_chain_kind kind, const char *from)
{
	assert_int_equal(find(), 0);
	assert_int_equal(source.kind, kind);
	assert_string_equal(source.from, from);
}

static void check_refused(const char *why)
{
	assert_int_equal(find(), CKPT_EAUTH);
	assert_non_null(strstr(rig.err.message, why));
}

/* Everything is there: each goes when the one before it is taken away. */
static void test_order(void **state)
{
	static const char config[] = "[default]\naws_access_key_id=CANARY3\naws_secret_access_key="
				     "CANARY\ncredential_process=p CANARY\n";
	static const char credentials[] =
		"[default]\naws_access_key_id=CANARY2\naws_secret_access_key=CANARY\n";

	(void)state;
	key_rig_put(&rig, ".aws/config", config);
	key_rig_put(&rig, ".aws/credentials", credentials);
	key_rig_set(&rig, "AWS_ACCESS_KEY_ID=CANARY1");
	key_rig_set(&rig, "AWS_SECRET_ACCESS_KEY=CANARY");
	key_rig_set(&rig, "AWS_SESSION_TOKEN=CANARY");
	key_rig_set(&rig, "AWS_ROLE_ARN=arn");
	key_rig_set(&rig, "AWS_WEB_IDENTITY_TOKEN_FILE=/t");
	key_rig_set(&rig, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://localhost/");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "the environment");
	assert_string_equal(source.keys.access, "CANARY1");
	assert_string_equal(source.keys.token, "CANARY");
	ckpt_s3_credential_chain_clear(&source);
	rig.lines[1] = "A=", rig.lines[2] = "B=";
	check_found(
		CKPT_S3_CREDENTIAL_CHAIN_WEB, "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE");
	assert_string_equal(source.web.arn, "arn");
	ckpt_s3_credential_chain_clear(&source);
	rig.lines[5] = "C=";
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'default' in ~/.aws/credentials");
	assert_string_equal(source.keys.access, "CANARY2");
	ckpt_s3_credential_chain_clear(&source);
	key_rig_put(&rig, ".aws/credentials", "");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_PROCESS, "profile 'default' in ~/.aws/config");
	assert_string_equal(source.command, "p CANARY");
	ckpt_s3_credential_chain_clear(&source);
	key_rig_put(&rig, ".aws/config",
		"[default]\naws_access_key_id=CANARY3\naws_secret_access_key=CANARY\n");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'default' in ~/.aws/config");
	assert_string_equal(source.keys.access, "CANARY3");
	ckpt_s3_credential_chain_clear(&source);
	key_rig_put(&rig, ".aws/config", "");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_CONTAINER, "the container's credentials service");
	ckpt_s3_credential_chain_clear(&source);
	rig.lines[6] = "D=";
	check_found(CKPT_S3_CREDENTIAL_CHAIN_INSTANCE, "the instance metadata service");
	assert_non_null(strstr(source.notes, "the environment: AWS_ACCESS_KEY_ID is not set"));
	ckpt_s3_credential_chain_clear(&source);
	key_rig_set(&rig, "AWS_EC2_METADATA_DISABLED=true");
	check_refused("there are no keys for S3: the environment: AWS_ACCESS_KEY_ID is not set;");
	assert_non_null(strstr(rig.err.message, "AWS_EC2_METADATA_DISABLED"));
	rig.options.anonymous = true;
	check_found(CKPT_S3_CREDENTIAL_CHAIN_NOBODY, "nobody: no keys are wanted");
}

static void test_profile_asked(void **state)
{
	(void)state;
	key_rig_put(&rig, ".aws/credentials",
		"[x]\naws_access_key_id=A\naws_secret_access_key=S\naws_session_token=T\n");
	key_rig_set(&rig, "AWS_ACCESS_KEY_ID=E");
	key_rig_set(&rig, "AWS_SECRET_ACCESS_KEY=E");
	key_rig_set(&rig, "AWS_PROFILE=x");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "the environment");
	ckpt_s3_credential_chain_clear(&source);
	rig.options.profile = "x";
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'x' in ~/.aws/credentials");
	assert_string_equal(source.keys.token, "T");
	ckpt_s3_credential_chain_clear(&source);
}

static void test_roles(void **state)
{
	(void)state;
	rig.options.profile = "a";
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nrole_arn=ra\nsource_profile=b\nexternal_id=x\nrole_session_name=me\n"
		"duration_seconds=3600\n[profile b]\nrole_arn=rb\nsource_profile=b\n");
	key_rig_put(&rig, ".aws/credentials",
		"[b]\naws_access_key_id=CANARY\naws_secret_access_key=CANARY\n");
	/* b has keys: its own role is not assumed. */
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'b' in ~/.aws/credentials");
	assert_int_equal(source.role_count, 1);
	assert_string_equal(source.roles[0].arn, "ra");
	assert_string_equal(source.roles[0].session, "me");
	assert_string_equal(source.roles[0].external_id, "x");
	assert_int_equal(source.roles[0].duration_s, 3600);
	ckpt_s3_credential_chain_clear(&source);
	/* It is used itself: then it is, with these keys. */
	rig.options.profile = "b";
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'b' in ~/.aws/credentials");
	assert_string_equal(source.roles[0].arn, "rb");
	ckpt_s3_credential_chain_clear(&source);
	rig.options.profile = "a";
	key_rig_put(&rig, ".aws/credentials", "");
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nrole_arn=ra\nsource_profile=b\n[profile "
		"b]\nrole_arn=rb\nsource_profile=c\n"
		"[profile c]\nrole_arn=rc\nweb_identity_token_file=/t\n");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_WEB, "profile 'c' in ~/.aws/config");
	assert_int_equal(source.role_count, 2);
	assert_string_equal(source.web.arn, "rc");
	assert_string_equal(source.roles[0].arn, "rb");
	assert_string_equal(source.roles[1].arn, "ra");
	ckpt_s3_credential_chain_clear(&source);
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nrole_arn=ra\ncredential_source=Ec2InstanceMetadata\n");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_INSTANCE, "the instance metadata service");
	assert_int_equal(source.role_count, 1);
	ckpt_s3_credential_chain_clear(&source);
}

static void test_refused(void **state)
{
	static const struct {
		const char *config;
		const char *why;
	} cases[] = {
		{"role_arn=r", "neither source_profile nor credential_source"},
		{"role_arn=r\nsource_profile=b\ncredential_source=Environment",
			"both source_profile"},
		{"role_arn=r\nsource_profile=nobody", "profile 'nobody', which is not there"},
		{"role_arn=r\nsource_profile=a", "with its own keys"},
		{"role_arn=r\nsource_profile=b\n[profile b]\nrole_arn=s\nsource_profile=a",
			"with its own keys"},
		{"role_arn=r\nsource_profile=b\n[profile b]\nregion=x",
			"profile 'b', with whose keys"},
		{"role_arn=r\nsource_profile=b\nmfa_serial=CANARY", "mfa_serial"},
		{"role_arn=r\nsource_profile=b\nduration_seconds=CANARY", "900 to 43200"},
		{"role_arn=r\nsource_profile=b\nduration_seconds=899", "900 to 43200"},
		{"role_arn=r\ncredential_source=CANARY", "unknown credential_source"},
		{"role_arn=r\ncredential_source=Environment",
			"which has none: the environment: AWS_ACCESS_KEY_ID"},
		{"web_identity_token_file=/t", "but no role"},
		{"sso_session=CANARY", "aws configure export-credentials --profile a"},
		{"sso_start_url=CANARY", "by SSO"},
		{"login_session=CANARY", "by aws login"},
		{"aws_access_key_id=CANARY", "aws_secret_access_key is missing"},
		{"aws_secret_access_key=CANARY", "aws_access_key_id is missing"},
		{"aws_access_key_id=CANARY\naws_secret_access_key=CAN ARY", "holds a character"},
	};
	char text[512];

	(void)state;
	rig.options.profile = "a";
	for (size_t i = 0; i < COUNT(cases); i++) {
		(void)snprintf(text, sizeof(text), "[profile a]\n%s\n", cases[i].config);
		key_rig_put(&rig, ".aws/config", text);
		check_refused(cases[i].why);
		assert_null(source.command);
	}
	/* What these words say to do helps. */
	key_rig_put(&rig, ".aws/config",
		"[profile a]\nsso_session=s\ncredential_process=aws configure export-credentials "
		"--profile a\n");
	check_found(CKPT_S3_CREDENTIAL_CHAIN_PROCESS, "profile 'a' in ~/.aws/config");
	ckpt_s3_credential_chain_clear(&source);
}

static void test_half_an_environment(void **state)
{
	(void)state;
	key_rig_set(&rig, "AWS_ACCESS_KEY_ID=CANARY");
	check_refused("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not");
}

/* More roles than anybody has. */
static void test_many_roles(void **state)
{
	char text[2048] = "";
	size_t length = 0;

	(void)state;
	for (unsigned i = 0; i < CKPT_S3_ROLES_MAX + 1; i++)
		length += (size_t)snprintf(text + length, sizeof(text) - length,
			"[profile p%u]\nrole_arn=r%u\nsource_profile=p%u\n", i, i, i + 1);
	(void)snprintf(text + length, sizeof(text) - length,
		"[profile p%u]\naws_access_key_id=A\naws_secret_access_key=S\n",
		CKPT_S3_ROLES_MAX + 1);
	key_rig_put(&rig, ".aws/config", text);
	rig.options.profile = "p0";
	check_refused("more than 8 roles");
	rig.options.profile = "p1";
	check_found(CKPT_S3_CREDENTIAL_CHAIN_STATIC, "profile 'p9' in ~/.aws/config");
	assert_int_equal(source.role_count, 8);
	assert_string_equal(source.roles[0].arn, "r8");
	ckpt_s3_credential_chain_clear(&source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_profile_asked, setup, teardown),
		cmocka_unit_test_setup_teardown(test_roles, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_half_an_environment, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_roles, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
