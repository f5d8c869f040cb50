/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of gxperf as CSV, for report.c.
 */
#ifndef REPORT_CSV_H
#define REPORT_CSV_H

#include "gxperf/report/report.h"

#include <stdio.h>

/** struct csv_where - The last columns, which distinguish a row from those of other runs. */
struct csv_where {
	const char *link, *port, *time, *host;
};

/** csv_row() - Print one row. @cells: its own columns; NULL: those of all rows. @first: the header before
 * it. */
void csv_row(FILE *out, const struct report_row *row, const struct report_cell *cells, unsigned n,
	     const struct csv_where *where, bool first);

#endif
