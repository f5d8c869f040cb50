// SPDX-License-Identifier: Apache-2.0
/* Results as CSV; see report_csv.h. */
#include "gxperf/report/report_csv.h"

#include <math.h>
#include <string.h>

/* Quotes only where CSV needs them. */
static void csv_text(FILE *out, const char *text)
{
	bool plain = !text[strcspn(text, ",\"\n")];

	putc(',', out);
	if (!plain)
		putc('"', out);
	for (; *text; text++) {
		if (*text == '"')
			putc('"', out);
		putc(*text, out);
	}
	if (!plain)
		putc('"', out);
}

static void csv_cell(FILE *out, double v)
{
	if (isfinite(v))
		fprintf(out, ",%.6g", v);
	else
		fprintf(out, ",");
}

static void row(FILE *out, const struct report_row *r, bool first)
{
	if (first)
		fprintf(out,
			"op,size_b,count,p50_us,avg_us,p99_us,p999_us,GB_s,Gb_s,cpu_pct,sms,wrong,"
			"checked_b,sha256%s,depth,lost,resent,duplicate,link,port,time,host\n",
			r->bus ? ",bus_GB_s" : "");
	fprintf(out, "%s,%llu,%llu", r->op, (unsigned long long)r->size_b,
		(unsigned long long)r->count);
	csv_cell(out, r->p50_us);
	csv_cell(out, r->avg_us);
	csv_cell(out, r->p99_us);
	csv_cell(out, r->p999_us);
	csv_cell(out, r->gb_s);
	csv_cell(out, r->gb_s * 8);
	csv_cell(out, r->cpu_pct);
	csv_cell(out, r->sms < 0 ? NAN : r->sms);
	csv_cell(out, r->checked ? (double)r->wrong : NAN);
	fprintf(out, ",%llu,%s", (unsigned long long)r->checked_b, r->sha256 ? r->sha256 : "");
	if (r->bus)
		csv_cell(out, r->bus_gb_s);
	csv_cell(out, r->depth ? r->depth : NAN);
	csv_cell(out, r->pkts ? (double)r->lost : NAN);
	csv_cell(out, r->pkts ? (double)r->resent : NAN);
	csv_cell(out, r->pkts ? (double)r->dup : NAN);
}

static void row_cells(FILE *out, const struct report_row *r, const struct report_cell *c,
		      unsigned n, bool first)
{
	if (first) {
		fprintf(out, "op,size_b");
		for (unsigned i = 0; i < n; i++)
			fprintf(out, ",%s", c[i].key);
		fprintf(out, ",checked_b,wrong,path_link,path_port,time,host\n");
	}
	fprintf(out, "%s,%llu", r->op, (unsigned long long)r->size_b);
	for (unsigned i = 0; i < n; i++) {
		if (c[i].text)
			csv_text(out, c[i].text);
		else
			csv_cell(out, c[i].v);
	}
	fprintf(out, ",%llu", (unsigned long long)r->checked_b);
	csv_cell(out, r->checked ? (double)r->wrong : NAN);
}

void csv_row(FILE *out, const struct report_row *r, const struct report_cell *cells, unsigned n,
	     const struct csv_where *w, bool first)
{
	if (cells)
		row_cells(out, r, cells, n, first);
	else
		row(out, r, first);
	csv_text(out, w->link);
	csv_text(out, w->port);
	csv_text(out, w->time);
	csv_text(out, w->host);
	putc('\n', out);
}
