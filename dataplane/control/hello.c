/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of a bootstrap connection, encoded and decoded; little endian (docs/wire.md). Pure: no
 * state, no clock, no allocation. A decoder reads no byte beyond its input, and refuses frames that
 * its encoder could not write. On the control thread.
 */
#include "gx/gx.h"
#include "gx_internal/wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FRAME_HDR_B    8
#define FRAME_LEN_B    4		      /* the length field, which does not count itself */
#define HELLO_PORT_B   (2 * GX_NAME_MAX + 12) /* at most, as encoded */
#define HELLO_REGION_B (GX_NAME_MAX + 20 + 25 + GX_EXPORT_HANDLE_B)
#define HELLO_LANE_B   (2 + GX_PORT_ADDR_MAX + 1 + 20)

_Static_assert(512 + GX_HELLO_PORTS * HELLO_PORT_B + GX_HELLO_REGIONS * HELLO_REGION_B +
			       GX_LINKS * (2 + GX_HELLO_OFFER_MAX) <
		       GX_HELLO_FRAME_MAX,
	       "a hello is one frame");
_Static_assert(512 + GX_HELLO_LANES * HELLO_LANE_B + GX_HELLO_BLOB_MAX < GX_HELLO_FRAME_MAX,
	       "so are all lanes");

/* A cursor for writing, and one for reading. A string is a length byte and its characters. */
struct wire_out {
	uint8_t *b;
	uint32_t pos;
};

struct wire_in {
	const uint8_t *b;
	uint32_t len, pos;
	bool bad; /* sticky: the input is short or invalid; further reads give 0 */
};

/* The low @n bytes of @v. */
static void out_int(struct wire_out *o, uint64_t v, unsigned n)
{
	for (; n; n--, v >>= 8)
		o->b[o->pos++] = (uint8_t)v;
}

static void out_bytes(struct wire_out *o, const void *data, uint32_t len)
{
	if (len)
		memcpy(o->b + o->pos, data, len);
	o->pos += len;
}

static bool char_ok(char c)
{
	return c >= 0x20 && c <= 0x7e;
}

/* At most @room - 1 characters: the reader adds a final 0. */
static void out_str(struct wire_out *o, const char *s, uint32_t room)
{
	uint32_t n = (uint32_t)strnlen(s, room - 1);

	out_int(o, n, 1);
	for (uint32_t i = 0; i < n; i++)
		out_int(o, char_ok(s[i]) ? (uint8_t)s[i] : '?', 1);
}

/* A link's own words: u16 length, then that many bytes. */
static void out_blob(struct wire_out *o, const uint8_t *b, uint32_t len)
{
	out_int(o, (uint16_t)len, 2);
	out_bytes(o, b, len);
}

static struct wire_out frame_start(uint8_t *b, enum gx_hello_type type)
{
	struct wire_out o = {.b = b, .pos = FRAME_LEN_B};

	out_int(&o, type, 2);
	out_int(&o, 0, 2);
	return o;
}

static uint32_t frame_end(struct wire_out *o)
{
	uint32_t len = o->pos;

	o->pos = 0;
	out_int(o, len - FRAME_LEN_B, FRAME_LEN_B);
	return len;
}

/* Return: the next @n bytes. NULL if there are fewer; the input is then bad. */
static const uint8_t *in_take(struct wire_in *in, uint32_t n)
{
	const uint8_t *p = in->b + in->pos;

	if (in->bad || n > in->len - in->pos) {
		in->bad = true;
		return NULL;
	}
	in->pos += n;
	return p;
}

static uint64_t in_int(struct wire_in *in, unsigned n)
{
	const uint8_t *p = in_take(in, n);
	uint64_t v = 0;

	for (; p && n; n--)
		v = v << 8 | p[n - 1];
	return v;
}

static void in_bytes(struct wire_in *in, void *data, uint32_t len)
{
	const uint8_t *p = in_take(in, len);

	if (p && len)
		memcpy(data, p, len);
}

static uint32_t in_count(struct wire_in *in, uint32_t max)
{
	uint32_t n = in_int(in, 4);

	if (n <= max)
		return n;
	in->bad = true;
	return 0;
}

/* Return: the length. */
static uint16_t in_blob(struct wire_in *in, uint8_t *b, uint32_t max)
{
	uint16_t len = in_int(in, 2);

	if (len > max)
		in->bad = true;
	if (in->bad)
		return 0;
	in_bytes(in, b, len);
	return len;
}

/* Read into @s, which the caller has zeroed: it stays "" if the string is invalid. */
static void in_str(struct wire_in *in, char *s, uint32_t room)
{
	uint32_t n = in_int(in, 1);
	const uint8_t *p = n < room ? in_take(in, n) : NULL;

	in->bad |= !p;
	for (uint32_t i = 0; !in->bad && i < n; i++)
		in->bad = !char_ok((char)p[i]);
	if (!in->bad)
		memcpy(s, p, n);
}

/* Was the input valid, and is it at its end? */
static int in_end(const struct wire_in *in)
{
	return !in->bad && in->pos == in->len ? 0 : -EPROTO;
}

static void export_put(struct wire_out *o, const struct gx_hello_export *e)
{
	out_int(o, e->kind, 1);
	if (e->kind == GX_EXPORT_NONE)
		return;
	out_int(o, e->map_len, 8);
	out_int(o, e->map_off, 8);
	out_int(o, e->map_id, 8);
	if (e->kind == GX_EXPORT_CUDA_IPC)
		out_bytes(o, e->handle, sizeof(e->handle));
}

static void hello_region_put(struct wire_out *o, const struct gx_hello_region *r)
{
	out_str(o, r->name, sizeof(r->name));
	out_int(o, r->token, 8);
	out_int(o, r->len, 8);
	out_int(o, r->kind, 1);
	out_int(o, r->access, 1);
	out_int(o, r->device, 2);
	export_put(o, &r->export);
}

uint32_t gx_hello_put(uint8_t *b, const struct gx_hello *h)
{
	struct wire_out o = frame_start(b, GX_HELLO_HELLO);
	uint32_t nr_ports = GX_MIN(h->nr_ports, GX_HELLO_PORTS);
	uint32_t nr_regions = GX_MIN(h->nr_regions, GX_HELLO_REGIONS);

	assert(nr_ports == h->nr_ports && nr_regions == h->nr_regions);
	out_int(&o, h->magic, 4);
	out_int(&o, h->version, 4);
	out_int(&o, h->pid, 4);
	out_int(&o, h->uid, 4);
	out_bytes(&o, h->host_id, sizeof(h->host_id));
	out_str(&o, h->unix_name, sizeof(h->unix_name));
	out_bytes(&o, h->nonce, sizeof(h->nonce));
	out_int(&o, h->id, 8);
	out_int(&o, h->nr_lanes, 4);
	out_int(&o, h->chunk_b, 4);
	out_int(&o, h->window, 4);
	out_int(&o, h->integrity, 4);
	out_int(&o, h->links, 4);
	out_int(&o, nr_ports, 4);
	for (uint32_t i = 0; i < nr_ports; i++) {
		out_str(&o, h->ports[i].name, sizeof(h->ports[i].name));
		out_int(&o, h->ports[i].flags, 4);
		out_int(&o, h->ports[i].payload_max, 4);
		out_int(&o, h->ports[i].payload_best, 4);
		out_str(&o, h->ports[i].host, sizeof(h->ports[i].host));
	}
	out_int(&o, nr_regions, 4);
	for (uint32_t i = 0; i < nr_regions; i++)
		hello_region_put(&o, &h->regions[i]);
	out_int(&o, GX_MIN(h->data_len, GX_HELLO_CONN_DATA_MAX), 1);
	out_bytes(&o, h->data, GX_MIN(h->data_len, GX_HELLO_CONN_DATA_MAX));
	for (unsigned i = 0; i < GX_LINKS; i++)
		if (h->links >> i & 1)
			out_blob(&o, h->offer[i].b, GX_MIN(h->offer[i].len, GX_HELLO_OFFER_MAX));
	return frame_end(&o);
}

/* A region must lie within its mapping. Otherwise the hello is malformed. */
static void export_get(struct wire_in *in, struct gx_hello_export *e, uint64_t region_len)
{
	e->kind = in_int(in, 1);
	if (e->kind > GX_EXPORT_CHUNKS)
		in->bad = true;
	if (in->bad || e->kind == GX_EXPORT_NONE)
		return;
	e->map_len = in_int(in, 8);
	e->map_off = in_int(in, 8);
	e->map_id = in_int(in, 8);
	if (e->kind == GX_EXPORT_CUDA_IPC)
		in_bytes(in, e->handle, sizeof(e->handle));
	if (e->map_off > e->map_len || region_len > e->map_len - e->map_off)
		in->bad = true;
}

static void hello_region_get(struct wire_in *in, struct gx_hello_region *r)
{
	in_str(in, r->name, sizeof(r->name));
	r->token = in_int(in, 8);
	r->len = in_int(in, 8);
	r->kind = in_int(in, 1);
	r->access = in_int(in, 1);
	r->device = in_int(in, 2);
	export_get(in, &r->export, r->len);
}

/* The program's bytes. */
static void hello_data_get(struct wire_in *in, struct gx_hello *h)
{
	uint8_t len = (uint8_t)in_int(in, 1);

	if (len > sizeof(h->data))
		in->bad = true;
	if (in->bad)
		return;
	h->data_len = len;
	in_bytes(in, h->data, len);
}

static void hello_offer_get(struct wire_in *in, struct gx_hello_offer *offer)
{
	offer->len = in_blob(in, offer->b, sizeof(offer->b));
}

/* A link that this end does not know is passed over. */
int gx_hello_get(const uint8_t *b, uint32_t len, struct gx_hello *h)
{
	struct gx_hello_offer unknown;
	struct wire_in in = {.b = b, .len = len};

	memset(h, 0, sizeof(*h));
	h->magic = in_int(&in, 4);
	h->version = in_int(&in, 4);
	if (in.bad || h->magic != GX_HELLO_MAGIC)
		return -EPROTO;
	if (h->version != GX_HELLO_VERSION)
		return -EPROTONOSUPPORT;
	h->pid = in_int(&in, 4);
	h->uid = in_int(&in, 4);
	in_bytes(&in, h->host_id, sizeof(h->host_id));
	in_str(&in, h->unix_name, sizeof(h->unix_name));
	in_bytes(&in, h->nonce, sizeof(h->nonce));
	h->id = in_int(&in, 8);
	h->nr_lanes = in_count(&in, GX_HELLO_LANES);
	h->chunk_b = in_int(&in, 4);
	h->window = in_int(&in, 4);
	h->integrity = in_int(&in, 4);
	h->links = in_int(&in, 4);
	h->nr_ports = in_count(&in, GX_HELLO_PORTS);
	for (uint32_t i = 0; i < h->nr_ports; i++) {
		in_str(&in, h->ports[i].name, sizeof(h->ports[i].name));
		h->ports[i].flags = in_int(&in, 4);
		h->ports[i].payload_max = in_int(&in, 4);
		h->ports[i].payload_best = in_int(&in, 4);
		in_str(&in, h->ports[i].host, sizeof(h->ports[i].host));
	}
	h->nr_regions = in_count(&in, GX_HELLO_REGIONS);
	for (uint32_t i = 0; i < h->nr_regions; i++)
		hello_region_get(&in, &h->regions[i]);
	hello_data_get(&in, h);
	for (unsigned i = 0; i < 32; i++)
		if (h->links >> i & 1)
			hello_offer_get(&in, i < GX_LINKS ? &h->offer[i] : &unknown);
	h->links &= GX_LINKS_ALL;
	return in_end(&in);
}

static void lane_put(struct wire_out *o, const struct gx_hello_lane *l)
{
	uint16_t len = GX_MIN(l->port.len, GX_PORT_ADDR_MAX);

	assert(len == l->port.len);
	out_int(o, len, 2);
	out_bytes(o, l->port.b, len);
	out_int(o, l->port.fd < 0 ? 0 : 1 + l->port.has_pool, 1);
	out_int(o, l->cid, 4);
	out_int(o, l->credit, 4);
	out_int(o, l->psn, 8);
	out_int(o, l->salt, 4);
}

static void lane_get(struct wire_in *in, struct gx_hello_lane *l)
{
	uint16_t len = in_int(in, 2);
	uint8_t nr_fds;

	if (len > GX_PORT_ADDR_MAX)
		in->bad = true;
	if (in->bad)
		return;
	l->port.len = len;
	in_bytes(in, l->port.b, len);
	nr_fds = in_int(in, 1);
	if (nr_fds > 2)
		in->bad = true;
	l->port.fd = nr_fds ? 0 : -1;
	l->port.has_pool = nr_fds > 1;
	l->cid = in_int(in, 4);
	l->credit = in_int(in, 4);
	l->psn = in_int(in, 8);
	l->salt = in_int(in, 4);
}

static void ways_put(struct wire_out *o, const struct gx_hello_lanes *l)
{
	uint32_t n = GX_MIN(l->nr_ports, GX_HELLO_PORTS);

	out_int(o, n, 1);
	for (uint32_t i = 0; i < n; i++) {
		out_int(o, l->ports[i].client, 1);
		out_int(o, l->ports[i].server, 1);
	}
}

/* One pair of ports is no list. */
static void ways_get(struct wire_in *in, struct gx_hello_lanes *l)
{
	uint8_t n = in_int(in, 1);

	if (n == 1 || n > GX_HELLO_PORTS || n > l->nr_lanes)
		in->bad = true;
	for (uint32_t i = 0; !in->bad && i < n; i++) {
		l->ports[i].client = in_int(in, 1);
		l->ports[i].server = in_int(in, 1);
	}
	l->nr_ports = in->bad ? 0 : n;
}

uint32_t gx_hello_lanes_put(uint8_t *b, enum gx_hello_type type, const struct gx_hello_lanes *l)
{
	struct wire_out o = frame_start(b, type);
	uint32_t nr_lanes = GX_MIN(l->nr_lanes, GX_HELLO_LANES);

	assert(nr_lanes == l->nr_lanes);
	out_str(&o, l->port, sizeof(l->port));
	out_int(&o, l->link, 1);
	out_int(&o, l->crc_by_copy, 1);
	out_bytes(&o, l->half, sizeof(l->half));
	out_int(&o, l->quantum, 4);
	out_int(&o, l->chunk_b, 4);
	out_int(&o, l->window, 4);
	out_int(&o, l->integrity, 4);
	out_int(&o, l->peer_timeout_ns, 8);
	out_int(&o, nr_lanes, 4);
	for (uint32_t i = 0; i < nr_lanes; i++)
		lane_put(&o, &l->lanes[i]);
	ways_put(&o, l);
	out_blob(&o, l->blob, GX_MIN(l->blob_b, GX_HELLO_BLOB_MAX));
	return frame_end(&o);
}

int gx_hello_lanes_get(const uint8_t *b, uint32_t len, struct gx_hello_lanes *l)
{
	struct wire_in in = {.b = b, .len = len};

	memset(l, 0, sizeof(*l));
	in_str(&in, l->port, sizeof(l->port));
	l->link = in_int(&in, 1);
	if (l->link >= GX_LINKS)
		in.bad = true;
	l->crc_by_copy = in_int(&in, 1);
	in_bytes(&in, l->half, sizeof(l->half));
	l->quantum = in_int(&in, 4);
	l->chunk_b = in_int(&in, 4);
	l->window = in_int(&in, 4);
	l->integrity = in_int(&in, 4);
	if (l->crc_by_copy >> 2 || (l->crc_by_copy && l->integrity != GX_INTEGRITY_CRC))
		in.bad = true;
	l->peer_timeout_ns = in_int(&in, 8);
	l->nr_lanes = in_count(&in, GX_HELLO_LANES);
	for (uint32_t i = 0; i < l->nr_lanes; i++)
		lane_get(&in, &l->lanes[i]);
	ways_get(&in, l);
	l->blob_b = in_blob(&in, l->blob, GX_HELLO_BLOB_MAX);
	return in_end(&in);
}

/* Ends of other versions read -EPROTONOSUPPORT too, and know no reason. */
uint32_t gx_hello_error_put(uint8_t *b, const struct gx_hello_error *e)
{
	struct wire_out o = frame_start(b, GX_HELLO_ERROR);

	out_int(&o, (uint32_t)e->err, 4);
	out_str(&o, e->text, sizeof(e->text));
	if (e->err != -EPROTONOSUPPORT)
		out_int(&o, e->reason, 2);
	return frame_end(&o);
}

int gx_hello_error_get(const uint8_t *b, uint32_t len, struct gx_hello_error *e)
{
	struct wire_in in = {.b = b, .len = len};

	memset(e, 0, sizeof(*e));
	e->err = (int32_t)in_int(&in, 4);
	in_str(&in, e->text, sizeof(e->text));
	if (e->err >= 0 || e->err < -GX_WIRE_ERR_MAX)
		return -EPROTO;
	e->reason = e->err == -EPROTONOSUPPORT ? GX_REASON_VERSION : in_int(&in, 2);
	return in_end(&in);
}

uint32_t gx_hello_data_put(uint8_t *b, const struct gx_hello_data *d)
{
	struct wire_out o = frame_start(b, GX_HELLO_DATA);

	out_bytes(&o, d->token, sizeof(d->token));
	out_int(&o, d->lane, 4);
	out_int(&o, d->index, 4);
	return frame_end(&o);
}

int gx_hello_data_get(const uint8_t *b, uint32_t len, struct gx_hello_data *d)
{
	struct wire_in in = {.b = b, .len = len};

	memset(d, 0, sizeof(*d));
	in_bytes(&in, d->token, sizeof(d->token));
	d->lane = in_int(&in, 4);
	d->index = in_int(&in, 4);
	return in_end(&in);
}

uint32_t gx_hello_plain_put(uint8_t *b, enum gx_hello_type type, const void *data, uint32_t len)
{
	struct wire_out o = frame_start(b, type);

	if (len > GX_HELLO_FRAME_MAX - FRAME_HDR_B)
		return 0;
	out_bytes(&o, data, len);
	return frame_end(&o);
}

int gx_hello_frame(const uint8_t *b, uint16_t *type, uint32_t *body_len)
{
	struct wire_in in = {.b = b, .len = FRAME_HDR_B};
	uint32_t len = in_int(&in, 4);
	uint16_t t = in_int(&in, 2), zero = in_int(&in, 2);

	if (len < FRAME_HDR_B - FRAME_LEN_B || len > GX_HELLO_FRAME_MAX - FRAME_LEN_B)
		return -EPROTO;
	if (t < GX_HELLO_HELLO || t > GX_HELLO_LINK || zero)
		return -EPROTO;
	*type = t;
	*body_len = len - (FRAME_HDR_B - FRAME_LEN_B);
	return 0;
}
