/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key files: their content, and reading and making them. No text of this file has a byte of a key
 * file in it. Any thread.
 */
#include "auth/auth.h"

#include "gx_internal/link.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_HEAD  "gx-key 1"
#define MEM_KEY_AT (AUTH_MEM_B - 1024) /* a key, in memory that begins with the text of its file */

_Static_assert(MEM_KEY_AT > AUTH_FILE_MAX_B && sizeof(struct gx_auth_key) <= 1024, "both fit");

/* ---- The content ---- */

static bool name_is_good(const char name[GX_AUTH_NAME_MAX])
{
	size_t len = strnlen(name, GX_AUTH_NAME_MAX);

	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && (!i || !strchr("._-", name[i])))
			return false;
	return len && len < GX_AUTH_NAME_MAX;
}

/* Names of regions between commas, each with a '*' at its end at most. */
static bool regions_are_good(const char regions[GX_AUTH_REGIONS_MAX])
{
	size_t len = strnlen(regions, GX_AUTH_REGIONS_MAX), one = 0;

	for (size_t i = 0; i < len; i++) {
		bool last = i + 1 == len || regions[i + 1] == ',';

		if (regions[i] == ',' ? !one : (unsigned char)regions[i] <= ' ')
			return false;
		if (regions[i] == '*' && !last)
			return false;
		one = regions[i] == ',' ? 0 : one + 1;
		if (one >= GX_NAME_MAX)
			return false;
	}
	return len < GX_AUTH_REGIONS_MAX && (one || !len);
}

int auth_key_check(struct gx_auth_key *key)
{
	static const uint8_t none[GX_AUTH_SECRET_B];

	if (!name_is_good(key->name))
		return gx_fail(
			-EINVAL,
			"the name of a key is 1 to %d letters, digits and \"._-\", and begins "
			"with a letter or a digit",
			GX_AUTH_NAME_MAX - 1);
	if (!memcmp(key->secret, none, sizeof(none)))
		return gx_fail(-EINVAL, "the secret of a key is %d random bytes, and not zeros",
			       GX_AUTH_SECRET_B);
	if (key->access & ~(unsigned)(GX_ACCESS_PUT | GX_ACCESS_GET))
		return gx_fail(-EINVAL,
			       "the access of a key is GX_ACCESS_PUT, GX_ACCESS_GET or both");
	if (!regions_are_good(key->regions))
		return gx_fail(-EINVAL,
			       "the regions of a key are names between commas, each of at most %d "
			       "bytes without blanks; a '*' may end a name",
			       GX_NAME_MAX - 1);
	if (!key->access)
		key->access = GX_ACCESS_PUT | GX_ACCESS_GET;
	return 0;
}

/* The words of a file; each takes the text after the blank. Return: NULL, or what is wrong. */
static const char *name_take(struct gx_auth_key *k, const char *text)
{
	if (strlen(text) >= sizeof(k->name))
		return "the name is too long";
	snprintf(k->name, sizeof(k->name), "%s", text);
	return NULL;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static const char *secret_take(struct gx_auth_key *k, const char *text)
{
	static const char bad[] = "a secret is 64 digits of 0-9 and a-f";

	if (strlen(text) != 2 * sizeof(k->secret))
		return bad;
	for (size_t i = 0; i < sizeof(k->secret); i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return bad;
		k->secret[i] = (uint8_t)(high << 4 | low);
	}
	return NULL;
}

static const char *access_take(struct gx_auth_key *k, const char *text)
{
	if (!strcmp(text, "put"))
		k->access = GX_ACCESS_PUT;
	else if (!strcmp(text, "get"))
		k->access = GX_ACCESS_GET;
	else if (!strcmp(text, "put,get") || !strcmp(text, "get,put"))
		k->access = GX_ACCESS_PUT | GX_ACCESS_GET;
	else
		return "access is put, get, or put,get";
	return NULL;
}

static const char *regions_take(struct gx_auth_key *k, const char *text)
{
	if (!*text || strlen(text) >= sizeof(k->regions))
		return "the list of regions is empty or too long";
	snprintf(k->regions, sizeof(k->regions), "%s", text);
	return NULL;
}

/* 1 and more, without sign or blank. @units: may end in K, M, G or T. */
static const char *number_take(const char *text, bool units, uint64_t max, uint64_t *out)
{
	static const char letters[] = "KMGT", *at;
	uint64_t n = 0, unit = 1;

	for (; *text >= '0' && *text <= '9' && n <= max; text++)
		n = 10 * n + (uint64_t)(*text - '0');
	at = units && *text ? strchr(letters, *text) : NULL;
	if (at) {
		unit = 1ull << 10 * (at - letters + 1);
		text++;
	}
	if (*text || !n || n > max / unit)
		return units ? "this is a number of bytes from 1 on, as 65536, 64K or 1G"
			     : "this is a number from 1 to 4294967295";
	*out = n * unit;
	return NULL;
}

static const char *conns_take(struct gx_auth_key *k, const char *text)
{
	uint64_t n = 0;
	const char *bad = number_take(text, false, UINT32_MAX, &n);

	k->conns_max = (uint32_t)n;
	return bad;
}

static const char *under_way_take(struct gx_auth_key *k, const char *text)
{
	return number_take(text, true, UINT64_MAX / 16, &k->under_way_max_b);
}

static const struct word {
	const char *word;
	const char *(*take)(struct gx_auth_key *k, const char *text);
} words[] = {
	{"name", name_take},	   {"secret", secret_take},	{"access", access_take},
	{"regions", regions_take}, {"connections", conns_take}, {"under-way", under_way_take},
};

#define WORD_NAME   1u /* bits of words[] */
#define WORD_SECRET 2u

/* One line, without its end. @seen: bit i: words[i] has come. */
static const char *line_take(struct gx_auth_key *k, const char *line, unsigned *seen)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(words); i++) {
		size_t len = strlen(words[i].word);

		if (strncmp(line, words[i].word, len) || line[len] != ' ')
			continue;
		if (*seen & 1u << i)
			return "this word has come before";
		*seen |= 1u << i;
		return words[i].take(k, line + len + 1);
	}
	return "a line is name, secret, access, regions, connections or under-way, one blank and a "
	       "value";
}

int auth_key_parse(const char *b, size_t len, const char *path, struct gx_auth_key *key)
{
	char line[sizeof("secret ") + GX_AUTH_REGIONS_MAX];
	unsigned nr = 0, seen = 0;
	const char *bad = NULL;

	*key = (struct gx_auth_key){.size = sizeof(*key)};
	while (len && !bad) {
		const char *end = memchr(b, '\n', len);
		size_t n = end ? (size_t)(end - b) : len;

		nr++;
		if (n >= sizeof(line) || memchr(b, 0, n)) {
			bad = "the line is too long, or has a byte 0";
			break;
		}
		memcpy(line, b, n);
		line[n] = 0;
		if (seen & WORD_SECRET)
			bad = "the secret is the last line, so that a file that is not whole is none";
		else if (nr > 1)
			bad = line_take(key, line, &seen);
		else if (strcmp(line, FILE_HEAD))
			bad = "a key file begins with the line \"" FILE_HEAD "\"";
		n += end != NULL;
		b += n;
		len -= n;
	}
	explicit_bzero(line, sizeof(line));
	if (!bad && (seen & (WORD_SECRET | WORD_NAME)) != (WORD_SECRET | WORD_NAME))
		bad = "the file ends without a name and a secret";
	if (bad)
		return gx_fail(-EINVAL, "key file %s, line %u: %s: gx_auth_make() makes good ones",
			       path, nr, bad);
	return 0;
}

size_t auth_key_text(const struct gx_auth_key *key, char buf[AUTH_FILE_MAX_B])
{
	static const char hex[] = "0123456789abcdef";
	struct gx_text text = {.buf = buf, .room = AUTH_FILE_MAX_B};
	unsigned both = GX_ACCESS_PUT | GX_ACCESS_GET;

	core_say(&text, FILE_HEAD "\nname %s\n", key->name);
	if (key->access && key->access != both)
		core_say(&text, "access %s\n", key->access == GX_ACCESS_PUT ? "put" : "get");
	if (key->regions[0])
		core_say(&text, "regions %s\n", key->regions);
	if (key->conns_max)
		core_say(&text, "connections %u\n", key->conns_max);
	if (key->under_way_max_b)
		core_say(&text, "under-way %" PRIu64 "\n", key->under_way_max_b);
	core_say(&text, "secret ");
	for (size_t i = 0; i < sizeof(key->secret); i++) {
		buf[text.at++] = hex[key->secret[i] >> 4];
		buf[text.at++] = hex[key->secret[i] & 15];
	}
	core_say(&text, "\n");
	return text.at;
}

/* ---- Reading ---- */

/* Kubernetes shows a Secret as links into a folder that it swaps: no chmod changes a mode there. */
static bool is_secret_volume(const char *path)
{
	char to[8];

	return readlink(path, to, sizeof(to)) >= 7 && !strncmp(to, "..data/", 7);
}

/* May others read or write it? Root may have chosen a group that reads. */
static int mode_check(const struct stat *st, const char *path)
{
	mode_t others = st->st_uid ? 077 : 037;

	if (st->st_uid && gx_uid_is_nobody(st->st_uid))
		return gx_fail(-EACCES,
			       "key file %s is of uid %u, each user that this user namespace does "
			       "not map: give it to the process's user or to root, and run as "
			       "another uid",
			       path, st->st_uid);
	if (st->st_uid && st->st_uid != geteuid())
		return gx_fail(
			-EACCES,
			"key file %s is of user %u: a key file is of the user of the process "
			"(%u), or of root",
			path, st->st_uid, geteuid());
	if (st->st_mode & others)
		return gx_fail(
			-EACCES,
			"key file %s has mode %04o, so others may read or change it: %s, and "
			"if it was open to others, make a new key",
			path, st->st_mode & 07777,
			is_secret_volume(path) ? "give the Secret's volume defaultMode: 0440"
					       : "chmod 600 it");
	return 0;
}

/* @given: an inherited descriptor, which may also be a pipe. */
static int file_check(int fd, const char *path, bool given)
{
	struct stat st;

	if (fstat(fd, &st))
		return gx_fail(-errno, "key file %s: %s", path, strerror(errno));
	if (given && S_ISFIFO(st.st_mode))
		return 0;
	if (!S_ISREG(st.st_mode))
		return gx_fail(-EINVAL, "key file %s is %s, and no file", path,
			       S_ISDIR(st.st_mode)    ? "a folder"
			       : S_ISFIFO(st.st_mode) ? "a pipe"
						      : "a device or a socket");
	if (st.st_size > AUTH_FILE_MAX_B)
		return gx_fail(-EFBIG,
			       "key file %s has more than %d bytes: gx_auth_make() makes good ones",
			       path, AUTH_FILE_MAX_B);
	return given ? 0 : mode_check(&st, path);
}

/* All of it: from its beginning, which a pipe does not know. Return: its length, -errno. */
static ssize_t file_read(int fd, char *buf)
{
	size_t len = 0;

	while (len <= AUTH_FILE_MAX_B) {
		ssize_t n = pread(fd, buf + len, AUTH_FILE_MAX_B + 1 - len, (off_t)len);

		if (n < 0 && errno == ESPIPE)
			n = read(fd, buf + len, AUTH_FILE_MAX_B + 1 - len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (!n)
			break;
		len += n < 0 ? 0 : (size_t)n;
	}
	return len > AUTH_FILE_MAX_B ? -EFBIG : (ssize_t)len;
}

bool auth_path_is_fd(const char *path)
{
	return !strncmp(path, "fd:", 3);
}

static int given_fd(const char *path)
{
	uint64_t n = 0;

	if (strcmp(path, "fd:0") && number_take(path + 3, false, INT32_MAX, &n))
		return gx_fail(
			-EINVAL,
			"key file %s: a descriptor is given as fd:3, and a file of that name "
			"as ./fd:3",
			path);
	return (int)n;
}

/* @mem: of auth_mem_get(). */
static int key_read(int fd, const char *path, bool given, char *mem, struct gx_auth_key *key)
{
	char why[CORE_TEXT_MAX];
	ssize_t len;
	int ret = file_check(fd, path, given);

	if (ret)
		return ret;
	len = file_read(fd, mem);
	if (len < 0)
		return gx_fail((int)len, "key file %s: %s", path, strerror((int)-len));
	ret = auth_key_parse(mem, (size_t)len, path, key);
	if (ret || !auth_key_check(key))
		return ret;
	snprintf(why, sizeof(why), "%s", gx_error());
	return gx_fail(-EINVAL, "key file %.128s: %.256s", path, why);
}

static int file_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 && errno == EACCES && is_secret_volume(path))
		return gx_fail(
			-EACCES,
			"key file %s: user %u may not read it: give the pod a "
			"securityContext with fsGroup, and the Secret's volume defaultMode: 0440",
			path, geteuid());
	if (fd < 0)
		return gx_fail(-errno, "key file %s: %s%s", path, strerror(errno),
			       errno == ENOENT ? ": gx_auth_make() makes one" : "");
	return fd;
}

GX_EXPORT int gx_auth_read(const char *path, struct gx_auth_key *key)
{
	bool given = auth_path_is_fd(path);
	int fd = given ? given_fd(path) : file_open(path), ret;
	struct gx_auth_key *own;
	char *mem;

	if (fd < 0)
		return fd;
	mem = auth_mem_get();
	own = (struct gx_auth_key *)(mem + MEM_KEY_AT);
	ret = mem ? key_read(fd, path, given, mem, own) : gx_fail(-ENOMEM, "no memory for a key");
	if (!ret)
		ret = core_struct_give("gx_auth_key", own, sizeof(*own), key);
	auth_mem_put(mem);
	if (!given)
		close(fd);
	return ret;
}

/* ---- Making ---- */

/* The name of a new file is on the disk when its folder is. */
static int folder_sync(const char *path)
{
	const char *slash = strrchr(path, '/');
	char dir[AUTH_PATH_MAX] = ".";
	int fd, ret;

	if (slash)
		snprintf(dir, sizeof(dir), "%.*s", (int)GX_MAX(slash - path, 1), path);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = fsync(fd) ? -errno : 0;
	close(fd);
	return ret;
}

static int file_write(int fd, const char *b, size_t len)
{
	while (len) {
		ssize_t n = write(fd, b, len);

		if (n < 0 && errno != EINTR)
			return -errno;
		b += n < 0 ? 0 : n;
		len -= n < 0 ? 0 : (size_t)n;
	}
	return fsync(fd) ? -errno : 0;
}

/* @mem: AUTH_MEM_B bytes for the key and its text. */
static int key_make(const char *path, const struct gx_auth_key *user, char *mem)
{
	struct gx_auth_key *key = (struct gx_auth_key *)(mem + MEM_KEY_AT);
	int fd, ret = core_struct_take("gx_auth_key", key, sizeof(*key), user);

	if (!ret && gx_random(key->secret, sizeof(key->secret)))
		ret = gx_fail(-EIO, "no random bytes");
	if (!ret)
		ret = auth_key_check(key);
	if (ret)
		return ret;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
	if (fd < 0)
		return gx_fail(-errno, "key file %s: %s%s", path, strerror(errno),
			       errno == EEXIST ? ": a key is never overwritten; choose another name"
					       : "");
	ret = file_write(fd, mem, auth_key_text(key, mem));
	close(fd);
	if (!ret)
		ret = folder_sync(path);
	if (!ret)
		return 0;
	unlink(path);
	return gx_fail(ret, "key file %s cannot be written: %s", path, strerror(-ret));
}

GX_EXPORT int gx_auth_make(const char *path, const struct gx_auth_key *key)
{
	char *mem = auth_mem_get();
	int ret;

	if (!mem)
		return gx_fail(-ENOMEM, "no memory for a key");
	if (strlen(path) >= AUTH_PATH_MAX)
		ret = gx_fail(-ENAMETOOLONG, "the path of a key file has at most %d bytes",
			      AUTH_PATH_MAX - 1);
	else
		ret = key_make(path, key, mem);
	auth_mem_put(mem);
	return ret;
}
