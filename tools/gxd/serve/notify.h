/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gxd reports to systemd: sd_notify(3), of which libsystemd is not needed for a datagram. Without
 * systemd these calls do nothing.
 */
#ifndef GXD_NOTIFY_H
#define GXD_NOTIFY_H

#include <stdint.h>

/** notify_open() - Take the socket and the times from the environment. Main thread, before others
 * start. A socket that is not there is a log line. */
void notify_open(void);

/** notify_say() - Send lines, as "READY=1\nSTATUS=serving". Any thread; never waits. */
void notify_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** notify_period_ns() - How often gxd looks at its cores: half the time that the watchdog gives, 10 s
 * without one; 0: nobody listens. */
uint64_t notify_period_ns(void);

#endif
