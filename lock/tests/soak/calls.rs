//! Many threads of one client call one server that stops, delays and loses its connections. At the
//! end, what each call was told is compared with the server's own record.
//!
//! The record is the counter of a fenced lock's tokens: each grant raises the counter by one. Every
//! thread has a lock of its own, so the counter counts the calls of one thread that ran. The
//! counters begin far apart, so a token tells whose reply has arrived.
//!
//! | the call was told | the call has run |
//! |---|---|
//! | a token | once: the token is the next one, after those of unknown calls |
//! | `OutcomeUnknown` | at most once |
//! | `Unreachable`, or the lock is taken | never |
//!
//! `SOAK_CALLS=500000` makes so many calls. Unless set, the test lasts `SOAK_SECONDS`, or ten
//! seconds.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use wheellock::{Client, Error, FencedGuard, Lock};
use wheellock_fixture::{Proxy, Server, wait_until};

use crate::plan::{millis, rng_of};
use crate::times::{LIMIT, SLACK, let_pass, now};
use crate::{number, say};

const PATIENT: u64 = 24;

/// Threads whose calls mostly have less time than the server needs while it is stopped or slow.
const HASTY: u64 = 8;

/// Longer than all that the faults take, and than [`SLACK`]: a call that waits for the timeout of
/// another is late.
const TIMEOUT: Duration = Duration::from_secs(5);

/// After its end, a call with an unknown outcome may run for less than this: its not-after has
/// passed.
const MAX_LATE: Duration = Duration::from_secs(1);

/// The limit of the last calls. What the unknown calls left is released by then, and far earlier
/// than a lease ends.
const LAST: Duration = Duration::from_secs(15);

/// The number of seconds unless `SOAK_SECONDS` or `SOAK_CALLS` is set.
const SHORT: u64 = 10;

/// Between the counters of two threads. A counter below the server's clock in microseconds would
/// jump to the clock.
const RANGE: u64 = 10_000_000_000_000_000;

/// What the calls of one thread were told.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    granted: u64,
    unknown: u64,
    not_sent: u64,
    taken: u64,
    /// Grants of calls that were told `OutcomeUnknown`, by the server's record.
    unknown_that_ran: u64,
    /// How much longer than its limit an acquire has taken, at most.
    latest: Duration,
    /// The longest `drop`. Without an idle connection, a `drop` waits as `unlock` does.
    longest_drop: Duration,
}

impl Tally {
    const fn calls(&self) -> u64 {
        self.granted + self.unknown + self.not_sent + self.taken
    }

    fn with(self, other: Self) -> Self {
        Self {
            granted: self.granted + other.granted,
            unknown: self.unknown + other.unknown,
            not_sent: self.not_sent + other.not_sent,
            taken: self.taken + other.taken,
            unknown_that_ran: self.unknown_that_ran + other.unknown_that_ran,
            latest: self.latest.max(other.latest),
            longest_drop: self.longest_drop.max(other.longest_drop),
        }
    }
}

/// One thread, its lock, and what the counter of the lock's tokens must be.
struct Caller {
    name: String,
    lock: Lock<FencedGuard>,
    is_hasty: bool,
    rng: Rng,
    /// The last token that was told.
    token: u64,
    /// When the calls ended that may have raised the counter since.
    unknown: VecDeque<Instant>,
    tally: Tally,
}

impl Caller {
    fn new(client: &Client, server: &Server, number: u64, seed: u64) -> Self {
        let name = format!("soak:calls:{number}");
        let token = (number + 1) * RANGE;
        server.command(&["SET", &format!("redisson_lock_token:{{{name}}}"), &token.to_string()]);
        Self {
            lock: client.fenced_lock(&name),
            name,
            is_hasty: number >= PATIENT,
            rng: rng_of(seed, number),
            token,
            unknown: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// Acquires, and notes what the call was told.
    fn acquire(&mut self, limit: Duration) -> Option<FencedGuard> {
        let begun = now();
        let ended = self.lock.try_lock_for(limit);
        let late = (now() - begun).saturating_sub(limit);
        assert!(late < SLACK, "{}: late by {late:?}", self.name);
        self.tally.latest = self.tally.latest.max(late);
        match ended {
            Ok(Some(guard)) => {
                self.see(guard.token(), begun);
                self.tally.granted += 1;
                return Some(guard);
            }
            Ok(None) => self.tally.taken += 1,
            Err(Error::Unreachable { .. }) => self.tally.not_sent += 1,
            Err(Error::OutcomeUnknown { .. }) => {
                self.tally.unknown += 1;
                self.unknown.push_back(now());
            }
            Err(error) => panic!("{}: {error}", self.name),
        }
        None
    }

    /// A call that began at this time has drawn this token.
    fn see(&mut self, token: u64, begun: Instant) {
        self.account_for(token.wrapping_sub(self.token + 1), token);
        self.token = token;
        self.unknown.retain(|ended| *ended + MAX_LATE > begun);
    }

    /// So many of the unknown calls have run: the counter shows this token.
    fn account_for(&mut self, ran: u64, token: u64) {
        let (name, last, unknown) = (&self.name, self.token, self.unknown.len());
        let count = usize::try_from(ran).unwrap();
        assert!(count <= unknown, "{name}: {token} after {last} and {unknown} unknown calls");
        // Of the others, more may run yet.
        self.unknown.drain(..count);
        self.tally.unknown_that_ran += ran;
    }

    /// One call, and its release: by `unlock`, which waits for the reply, or by `drop`, which mostly
    /// does not.
    fn call(&mut self) {
        let limit = if self.is_hasty { millis(&mut self.rng, 1, 11) } else { TIMEOUT };
        let Some(guard) = self.acquire(limit) else { return };
        let begun = now();
        let drops = self.is_hasty || self.rng.bool();
        if drops {
            drop(guard);
        } else {
            match guard.unlock() {
                Ok(()) | Err(Error::OutcomeUnknown { .. }) => {}
                Err(error) => panic!("{}: {error}", self.name),
            }
        }
        let took = now() - begun;
        assert!(took < SLACK, "{}: released in {took:?}", self.name);
        if drops {
            self.tally.longest_drop = self.tally.longest_drop.max(took);
        }
    }
}

/// Causes one fault after the other, until the calls are over.
fn cause_faults(server: &Server, proxy: &Proxy, mut rng: Rng, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let_pass(millis(&mut rng, 5, 150));
        match rng.u32(..8) {
            0 | 1 => {
                server.pause();
                let_pass(millis(&mut rng, 1, 400));
                // Some calls meet the end of their connections during a stop.
                if rng.bool() {
                    proxy.cut_all();
                }
                server.resume();
            }
            2 | 3 => proxy.cut_all(),
            4 => proxy.reset_all(),
            5 => {
                proxy.delay_requests(millis(&mut rng, 1, 20));
                let_pass(millis(&mut rng, 10, 100));
                proxy.delay_requests(Duration::ZERO);
            }
            6 => {
                proxy.delay_replies(millis(&mut rng, 1, 20));
                let_pass(millis(&mut rng, 10, 100));
                proxy.delay_replies(Duration::ZERO);
            }
            _ => {
                proxy.hold_all(true);
                let_pass(millis(&mut rng, 1, 200));
                proxy.hold_all(false);
            }
        }
        count += 1;
    }
    count
}

/// The faults end, also when a thread has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_call_is_told_what_became_of_it_while_connections_break() {
    let seed = number("SOAK_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let calls = number("SOAK_CALLS");
    let length = Duration::from_secs(number("SOAK_SECONDS").unwrap_or(SHORT));
    say(&format!("calls: SOAK_SEED={seed}\n"));

    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = Client::builder().url(&proxy.url()).command_timeout(TIMEOUT).build().unwrap();
    let mut callers: Vec<Caller> =
        (0..PATIENT + HASTY).map(|number| Caller::new(&client, &server, number, seed)).collect();
    let (begun, made, is_over) = (now(), AtomicU64::new(0), AtomicBool::new(false));
    let goes_on = || match calls {
        _ if is_over.load(Ordering::Relaxed) => false,
        Some(calls) => made.fetch_add(1, Ordering::Relaxed) < calls,
        None => now() - begun < length,
    };
    let faults = thread::scope(|scope| {
        let faults =
            scope.spawn(|| cause_faults(&server, &proxy, rng_of(seed, PATIENT + HASTY), &is_over));
        let ends = Over(&is_over);
        let threads: Vec<_> = callers
            .iter_mut()
            .map(|caller| {
                let goes_on = &goes_on;
                scope.spawn(move || {
                    while goes_on() {
                        caller.call();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(ends);
        faults.join().unwrap()
    });
    let took = now() - begun;

    // The faults are over: every call is granted, and nothing is left to do.
    for caller in &mut callers {
        let guard = caller.acquire(LAST);
        guard.expect("a grant without faults").unlock().unwrap();
    }
    wait_until("nothing waits and no release is queued", LIMIT, || {
        let stats = client.stats();
        let open = stats.queued_releases + stats.unread_releases;
        (stats.held, stats.waiters, open) == (0, 0, 0)
    });
    let stats = client.stats();
    for caller in &mut callers {
        assert!(!caller.lock.is_locked().unwrap(), "{} is locked", caller.name);
        let last = caller.lock.last_token().unwrap();
        caller.account_for(last.wrapping_sub(caller.token), last);
    }

    let (patient, hasty) = callers.split_at(usize::try_from(PATIENT).unwrap());
    let mut figures = String::new();
    for (kind, callers) in [("patient", patient), ("hasty", hasty)] {
        let tally = callers.iter().fold(Tally::default(), |sum, caller| sum.with(caller.tally));
        writeln!(figures, "{} {kind} calls: {tally:?}", tally.calls()).unwrap();
        assert!(tally.granted > 0, "{figures}");
    }
    writeln!(figures, "{faults} faults in {took:?}, {} connections", stats.connections_made)
        .unwrap();
    say(&figures);
    assert_eq!((stats.lost, stats.panics), (0, 0), "{figures}");
}
