/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's texts name fields and calls of the API ("gx_gpu_opts.bounce"); the user of a tool knows
 * the tool's options ("--bounce"). The tools pass each text of the library through here before they
 * print it. Any thread.
 */
#ifndef FLAG_H
#define FLAG_H

/** flag_say() - Replace fields and calls of the API in @text by the tools' options. The text does
 * not become longer. Return: @text. */
char *flag_say(char *text);

/** flag_log() - Make log lines name the options too. Once, at the start. */
void flag_log(void);

#endif
