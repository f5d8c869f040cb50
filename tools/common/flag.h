/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's texts name fields and calls of the API ("gx_opts.bounce"); the user of a tool knows
 * its options ("--bounce"). Each text of the library goes through here on its way to a user. Any
 * thread.
 */
#ifndef FLAG_H
#define FLAG_H

/** flag_say() - Put the tools' options where @text names fields and calls of the API. The text does
 * not become longer. Return: @text. */
char *flag_say(char *text);

/** flag_log() - Have the log name options, too. Once, at the start. */
void flag_log(void);

#endif
