/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at many tensors at once: where each one is and how it lies, and how often PyTorch has seen
 * it change. What is asked is public, DLPack's table of C functions and the attribute _version.
 *
 * An extension of its own, because cffi lets go of the GIL around every call and this needs it. Of
 * PyTorch there is no header in it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * The ABI of DLPack 1, as far as it is needed here.
 */

struct dl_tensor {
	void *data;
	struct {
		int32_t type;
		int32_t id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code;
		uint8_t bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
};

struct dl_table {
	struct {
		uint32_t major;
		uint32_t minor;
	} version;
	struct dl_table *older;
	void *allocate;
	void *take;
	void *give;
	int (*look)(void *object, struct dl_tensor *out);
	void *stream;
};

enum {
	DL_MAJOR = 1,
	/* Tensors whose memory is touched together: enough to wait for all at once. */
	BATCH = 64,
	/* Words of an object that are looked at for addresses. */
	WORDS = 8,
	/* About where torch 2.13 has what it is asked for. Another version is asked more slowly. */
	SIZES = 64,
	STRIDES = 128,
	TYPE = 160,
	DATA = 56,
	COUNT = 16,
	/* Where CPython has the attributes of a subclass of it, and the table of a dict. */
	SLOTS = 48,
	DICT_TABLE = 4,
	LINE = 64,
	/* At least. */
	PAGE = 4096,
	NDIM_MAX = 64,
};

/*
 * Most of the time that a tensor takes to answer is spent waiting for memory: whatever ran since
 * the last save has pushed it out of the caches, and where the next line is stands in the one
 * before. So the lines of a batch are read first, side by side, and what is in them is dropped. The
 * way from line to line is found with tensors made for that; where it is not, all takes longer.
 */
struct road {
	/* Behind the head of the Python object stands the address of PyTorch's own. */
	bool known;
	/* The words of that one where those of the storage and of the counter of changes stand. */
	int storage;
	int counter;
};

struct glance {
	PyTypeObject *tensor;
	PyObject *parameter;
	PyObject *version;
	PyObject *capsule;
	int (*look)(void *object, struct dl_tensor *out);
	struct road road;
};

struct object {
	PyObject head;
	uintptr_t *own;
};

/* The batch in hand: borrowed, for the caller has the list and nothing changes it. */
struct batch {
	PyObject *list;
	Py_ssize_t end;
	Py_ssize_t at;
	int count;
	PyObject *objects[BATCH];
};

static struct glance *of(PyObject *module)
{
	return PyModule_GetState(module);
}

static bool next_batch(struct batch *batch)
{
	batch->at += batch->count;
	const Py_ssize_t left = batch->end - batch->at;
	batch->count = (int)(left < BATCH ? left : BATCH);
	for (int i = 0; i < batch->count; i++)
		batch->objects[i] = PyList_GetItem(batch->list, batch->at + i);
	return batch->count > 0;
}

/*
 * Reads what lies `offset` bytes behind an address that is good. It may be behind the object's end;
 * on another page there may be nothing, and only a prefetch may be of that.
 */
static void touch(const void *address, uintptr_t offset)
{
	const char *there = (const char *)address + offset;
	if (((uintptr_t)address ^ (uintptr_t)there) / PAGE)
		__builtin_prefetch(there);
	else
		(void)*(const volatile char *)there;
}

static bool is_tensor(const struct glance *glance, PyObject *object)
{
	return PyObject_TypeCheck(object, glance->tensor);
}

/* PyTorch's own objects of those that have one. Returns how many. */
static int owns(const struct glance *glance, const struct batch *batch, uintptr_t **ret_owns)
{
	int count = 0;
	PyTypeObject *last = glance->tensor;
	for (int i = 0; i < batch->count; i++) {
		PyObject *object = batch->objects[i];
		if (Py_TYPE(object) != last) {
			if (!is_tensor(glance, object))
				continue;
			last = Py_TYPE(object);
		}
		uintptr_t *own = ((struct object *)object)->own;
		if (own)
			ret_owns[count++] = own;
	}
	return count;
}

static void touch_counters(const struct glance *glance, const struct batch *batch)
{
	if (!glance->road.known)
		return;
	uintptr_t *found[BATCH];
	const int count = owns(glance, batch, found);
	const void *counters[BATCH];
	for (int i = 0; i < count; i++)
		counters[i] = (const void *)found[i][glance->road.counter];
	for (int i = 0; i < count; i++)
		if (counters[i]) {
			touch(counters[i], 0);
			touch(counters[i], COUNT);
		}
}

static void touch_storages(const struct glance *glance, const struct batch *batch)
{
	if (!glance->road.known)
		return;
	uintptr_t *found[BATCH];
	const int count = owns(glance, batch, found);
	const void *storages[BATCH];
	for (int i = 0; i < count; i++) {
		touch(found[i], 0);
		touch(found[i], SIZES);
		touch(found[i], STRIDES);
		touch(found[i], TYPE);
		storages[i] = (const void *)found[i][glance->road.storage];
	}
	for (int i = 0; i < count; i++)
		if (storages[i]) {
			touch(storages[i], 0);
			touch(storages[i], DATA);
		}
}

/*
 * Where tensors are and how they lie: for each one its address, device, type, number of dimensions,
 * shape and strides. Two such texts are equal when nothing of that has changed.
 */

struct text {
	char *bytes;
	size_t len;
	size_t room;
};

static int put(struct text *text, const void *bytes, size_t len)
{
	if (!text->bytes || text->room - text->len < len) {
		const size_t room = (text->room + len) * 2;
		char *more = PyMem_Realloc(text->bytes, room);
		if (!more) {
			PyErr_NoMemory();
			return -1;
		}
		text->bytes = more;
		text->room = room;
	}
	memcpy(text->bytes + text->len, bytes, len);
	text->len += len;
	return 0;
}

struct place {
	uint64_t address;
	int32_t device;
	int32_t device_index;
	int32_t ndim;
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
	int64_t dims[2 * NDIM_MAX];
};

static size_t place_size(const struct place *place)
{
	return offsetof(struct place, dims) + 2 * (size_t)place->ndim * sizeof(place->dims[0]);
}

/* 1: this one cannot be described so. */
static int look(const struct glance *glance, PyObject *object, struct place *ret_place)
{
	PyTypeObject *type = Py_TYPE(object);
	if (type != glance->tensor && (PyObject *)type != glance->parameter)
		return 1;
	struct dl_tensor found;
	if (glance->look(object, &found) != 0) {
		PyErr_Clear();
		return 1;
	}
	if (found.ndim < 0 || found.ndim > NDIM_MAX || (found.ndim && !found.strides))
		return 1;
	ret_place->address = (uintptr_t)found.data + found.byte_offset;
	ret_place->device = found.device.type;
	ret_place->device_index = found.device.id;
	ret_place->ndim = found.ndim;
	ret_place->code = found.dtype.code;
	ret_place->bits = found.dtype.bits;
	ret_place->lanes = found.dtype.lanes;
	for (int i = 0; i < found.ndim; i++) {
		ret_place->dims[i] = found.shape[i];
		ret_place->dims[found.ndim + i] = found.strides[i];
	}
	return 0;
}

PyDoc_STRVAR(places_doc,
	"places(tensors, /)\n--\n\n"
	"Where plain tensors are and how they lie, to be compared; None: not known.");

static PyObject *places(PyObject *module, PyObject *list)
{
	const struct glance *glance = of(module);
	if (!PyList_Check(list))
		return PyErr_Format(PyExc_TypeError, "places() takes a list");
	struct batch batch = {.list = list, .end = PyList_Size(list)};
	struct text text = {0};
	struct place place;
	int err = glance->look ? 0 : 1;
	while (!err && next_batch(&batch)) {
		touch_storages(glance, &batch);
		for (int i = 0; i < batch.count && !err; i++) {
			err = look(glance, batch.objects[i], &place);
			if (!err)
				err = put(&text, &place, place_size(&place));
		}
	}
	PyObject *made = NULL;
	if (!err)
		made = PyBytes_FromStringAndSize(text.bytes, (Py_ssize_t)text.len);
	else if (err > 0)
		made = Py_NewRef(Py_None);
	PyMem_Free(text.bytes);
	return made;
}

PyDoc_STRVAR(same_doc, "same_places(tensors, places, /)\n--\n\n"
		       "Whether places() would say that again.");

static PyObject *same_places(PyObject *module, PyObject *args)
{
	const struct glance *glance = of(module);
	PyObject *list;
	PyObject *text;
	if (!PyArg_ParseTuple(args, "O!S", &PyList_Type, &list, &text))
		return NULL;
	char *then;
	Py_ssize_t left;
	if (PyBytes_AsStringAndSize(text, &then, &left) < 0)
		return NULL;
	struct batch batch = {.list = list, .end = PyList_Size(list)};
	struct place place;
	bool same = glance->look != NULL;
	while (same && next_batch(&batch)) {
		touch_storages(glance, &batch);
		for (int i = 0; i < batch.count && same; i++) {
			same = look(glance, batch.objects[i], &place) == 0;
			const size_t size = same ? place_size(&place) : 0;
			same = same && (size_t)left >= size && memcmp(then, &place, size) == 0;
			then += size;
			left -= (Py_ssize_t)size;
		}
	}
	return PyBool_FromLong(same && left == 0);
}

PyDoc_STRVAR(versions_doc,
	"versions(tensors, start, /)\n--\n\n"
	"How often PyTorch has seen each tensor change, from a number on: int64, one "
	"after the other.");

static PyObject *versions(PyObject *module, PyObject *args)
{
	const struct glance *glance = of(module);
	PyObject *list;
	Py_ssize_t start;
	if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &list, &start))
		return NULL;
	struct batch batch = {.list = list, .end = PyList_Size(list), .at = start};
	if (start < 0 || start > batch.end)
		return PyErr_Format(PyExc_ValueError, "there is no number %zd", start);
	PyObject *made = PyBytes_FromStringAndSize(NULL, (batch.end - start) * 8);
	if (!made)
		return NULL;
	char *out = PyBytes_AsString(made);
	while (next_batch(&batch)) {
		touch_counters(glance, &batch);
		for (int i = 0; i < batch.count; i++) {
			PyObject *version = PyObject_GetAttr(batch.objects[i], glance->version);
			const int64_t number = version ? PyLong_AsLongLong(version) : -1;
			Py_XDECREF(version);
			if (number == -1 && PyErr_Occurred()) {
				Py_DECREF(made);
				return NULL;
			}
			memcpy(out + (batch.at - start + i) * 8, &number, 8);
		}
	}
	return made;
}

/*
 * Whether objects still hold the same others. What is held is compared and not counted, so that it
 * stays out of the caches.
 */

static bool same_key(PyObject *a, PyObject *b)
{
	return a == b || (PyUnicode_Check(a) && PyUnicode_Check(b) && PyUnicode_Compare(a, b) == 0);
}

static void touch_tables(const struct batch *batch)
{
	for (int i = 0; i < batch->count; i++) {
		const char *table = ((const char **)batch->objects[i])[DICT_TABLE];
		for (int line = 0; line < 3; line++)
			__builtin_prefetch(table + (ptrdiff_t)line * LINE);
	}
}

PyDoc_STRVAR(items_doc,
	"same_items(dicts, keys, values, /)\n--\n\n"
	"Whether these are the keys and the very values of the dicts, in this order.");

static PyObject *same_items(PyObject *module, PyObject *args)
{
	(void)module;
	PyObject *dicts;
	PyObject *keys;
	PyObject *values;
	PyObject *key;
	PyObject *value;
	if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &dicts, &PyList_Type, &keys,
		    &PyList_Type, &values))
		return NULL;
	const Py_ssize_t end = PyList_Size(values);
	if (PyList_Size(keys) != end)
		return PyErr_Format(PyExc_ValueError, "as many keys as values");
	struct batch batch = {.list = dicts, .end = PyList_Size(dicts)};
	Py_ssize_t number = 0;
	while (next_batch(&batch)) {
		for (int i = 0; i < batch.count; i++)
			if (!PyDict_Check(batch.objects[i]))
				return PyErr_Format(PyExc_TypeError, "same_items() takes dicts");
		touch_tables(&batch);
		for (int i = 0; i < batch.count; i++) {
			Py_ssize_t at = 0;
			while (PyDict_Next(batch.objects[i], &at, &key, &value)) {
				if (number == end || PyList_GetItem(values, number) != value ||
					!same_key(PyList_GetItem(keys, number), key))
					Py_RETURN_FALSE;
				number++;
			}
		}
	}
	return PyBool_FromLong(number == end);
}

PyDoc_STRVAR(attributes_doc,
	"same_attributes(objects, name, values, start, /)\n--\n\n"
	"Whether the attribute of each object, from a number on, is the very value "
	"of that number.");

static PyObject *same_attributes(PyObject *module, PyObject *args)
{
	(void)module;
	PyObject *objects;
	PyObject *name;
	PyObject *values;
	Py_ssize_t start;
	if (!PyArg_ParseTuple(
		    args, "O!UO!n", &PyList_Type, &objects, &name, &PyList_Type, &values, &start))
		return NULL;
	struct batch batch = {.list = objects, .end = PyList_Size(objects), .at = start};
	struct batch beside = {.list = values, .end = PyList_Size(values), .at = start};
	if (start < 0 || batch.end != beside.end)
		return PyErr_Format(PyExc_ValueError, "as many objects as values");
	while (next_batch(&batch) && next_batch(&beside)) {
		for (int i = 0; i < batch.count; i++) {
			touch(batch.objects[i], 0);
			touch(batch.objects[i], SLOTS);
			touch(beside.objects[i], 0);
		}
		for (int i = 0; i < batch.count; i++) {
			PyObject *value = PyObject_GetAttr(batch.objects[i], name);
			if (!value)
				return NULL;
			Py_DECREF(value);
			if (value != beside.objects[i])
				Py_RETURN_FALSE;
		}
	}
	Py_RETURN_TRUE;
}

/*
 * Getting ready.
 */

/* The newest table whose ABI is the one above. */
static const struct dl_table *table_of(PyObject *capsule)
{
	if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
		return NULL;
	const struct dl_table *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
	while (table && table->version.major > DL_MAJOR)
		table = table->older;
	return table && table->version.major == DL_MAJOR ? table : NULL;
}

PyDoc_STRVAR(prepare_doc,
	"prepare(tensor, parameter, table, /)\n--\n\n"
	"Names the two classes whose memory places() tells, and their DLPack table or "
	"None. Returns whether it can.");

static PyObject *prepare(PyObject *module, PyObject *args)
{
	struct glance *glance = of(module);
	PyObject *tensor;
	PyObject *parameter;
	PyObject *capsule;
	if (!PyArg_ParseTuple(
		    args, "O!O!O", &PyType_Type, &tensor, &PyType_Type, &parameter, &capsule))
		return NULL;
	const struct dl_table *table = table_of(capsule);
	/* They live as long as the process does. */
	glance->tensor = (PyTypeObject *)Py_NewRef(tensor);
	glance->parameter = Py_NewRef(parameter);
	glance->capsule = Py_NewRef(capsule);
	glance->look = table ? table->look : NULL;
	return PyBool_FromLong(glance->look != NULL);
}

/*
 * The only word behind the first that all three have alike and is `wanted`; if that is 0, the only
 * address that the first two have alike and the third has not. -1: there is none, or several.
 */
static int find_word(uintptr_t *const owns[3], uintptr_t wanted)
{
	int found = -1;
	for (int i = 1; i < WORDS; i++) {
		const uintptr_t word = owns[0][i];
		const bool alike = owns[2][i] == word;
		const bool fits = wanted ? word == wanted && alike
					 : word && word % sizeof(word) == 0 && !alike;
		if (!fits || owns[1][i] != word)
			continue;
		if (found >= 0)
			return -1;
		found = i;
	}
	return found;
}

PyDoc_STRVAR(learn_doc,
	"learn(tensors, addresses, storage, /)\n--\n\n"
	"Finds the way through memory with three tensors: the first and the second share their "
	"storage and their counter, the third has a counter of its own. Returns whether it could.");

static PyObject *learn(PyObject *module, PyObject *args)
{
	struct glance *glance = of(module);
	PyObject *probes[3];
	unsigned long long addresses[3];
	unsigned long long storage;
	if (!PyArg_ParseTuple(args, "(OOO)(KKK)K", &probes[0], &probes[1], &probes[2],
		    &addresses[0], &addresses[1], &addresses[2], &storage))
		return NULL;
	uintptr_t *owns[3];
	for (int i = 0; i < 3; i++) {
		if (!glance->tensor || !is_tensor(glance, probes[i]))
			return PyErr_Format(PyExc_TypeError, "learn() takes tensors");
		owns[i] = ((struct object *)probes[i])->own;
		if (!owns[i] || (uintptr_t)owns[i] != addresses[i])
			Py_RETURN_FALSE;
	}
	const int storage_word = storage ? find_word(owns, (uintptr_t)storage) : -1;
	const int counter_word = find_word(owns, 0);
	glance->road = (struct road){
		.known = storage_word > 0 && counter_word > 0,
		.storage = storage_word,
		.counter = counter_word,
	};
	return PyBool_FromLong(glance->road.known);
}

/*
 * The module.
 */

static PyMethodDef methods[] = {
	{"prepare", prepare, METH_VARARGS, prepare_doc},
	{"learn", learn, METH_VARARGS, learn_doc},
	{"places", places, METH_O, places_doc},
	{"same_places", same_places, METH_VARARGS, same_doc},
	{"versions", versions, METH_VARARGS, versions_doc},
	{"same_items", same_items, METH_VARARGS, items_doc},
	{"same_attributes", same_attributes, METH_VARARGS, attributes_doc},
	{0},
};

static int start(PyObject *module)
{
	struct glance *glance = of(module);
	glance->version = PyUnicode_InternFromString("_version");
	return glance->version ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, start},
	{0},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "libckpt._glance",
	.m_size = sizeof(struct glance),
	.m_methods = methods,
	.m_slots = slots,
};

PyMODINIT_FUNC PyInit__glance(void);

PyMODINIT_FUNC PyInit__glance(void)
{
	return PyModuleDef_Init(&definition);
}
