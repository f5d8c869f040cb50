/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of a bootstrap connection, between its socket and auth_tls.c. ctl_conn.c sends with it,
 * ctl_frame.c receives and does the handshake. On the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ctl_tls_open(struct ctl_conn *cc, const char *name)
{
	struct ctl *ctl = cc->ctl;
	struct ctl_tls *s = malloc(sizeof(*s));

	if (!ctl->tls)
		ctl->tls = auth_tls_ctx_open();
	if (!s || !ctl->tls)
		goto err;
	s->len = s->pos = 0;
	s->ended = false;
	s->t = auth_tls_new(ctl->tls, cc->server, name, cc->key ? cc->key->k.secret : NULL);
	if (!s->t)
		goto err;
	cc->tls = s;
	return 0;
err:
	free(s);
	return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "no memory for TLS");
}

void ctl_tls_free(struct ctl_conn *cc)
{
	if (cc->tls)
		auth_tls_free(cc->tls->t);
	free(cc->tls);
	cc->tls = NULL;
}

uint32_t ctl_tls_out(struct ctl_conn *cc, uint8_t **b)
{
	struct ctl_tls *s = cc->tls;

	if (s->pos == s->len) {
		s->pos = 0;
		s->len = (uint32_t)auth_tls_out(s->t, s->out, sizeof(s->out));
	}
	*b = s->out + s->pos;
	return s->len - s->pos;
}

void ctl_tls_end(struct ctl_conn *cc)
{
	if (!cc->tls->ended)
		auth_tls_end(cc->tls->t);
	cc->tls->ended = true;
}

int ctl_tls_secret(const struct gx_conn *c, const struct auth_way *way, struct auth_secret *out)
{
	return c->ctl && c->ctl->tls ? auth_tls_secret(c->ctl->tls->t, way, out) : -ENOTCONN;
}
