//! The owner of a hold: a client's identity and the number of one hold.
//!
//! Redisson's owner is `<client uuid>:<thread id>`, and Java never parses an owner. Ours is
//! `<client uuid>:<number>`, with a new number for every outermost hold. So a command which arrives
//! long after its connection was given up (the kernel sends it again, a stopped server resumes, a
//! proxy delivers it) names a finished hold, and cannot affect the next hold.
//!
//! The UUID is random, but of version 8, while Java's is of version 4. So in a queue of mixed
//! waiters, ours, which renew their liveness deadline, are distinguished from Redisson's, which do
//! not.
//!
//! The number of a lock's hold has the start time of its acquire and whether the hold is watched,
//! for queries about the holder. Such a number is 2^62 plus the milliseconds since the client's
//! start, a sequence and the watched bit. Numbers always grow and stay below 2^63. So Redisson's
//! hash has this information without another key or command. A waiter draws a new owner for each
//! try after a refusal, so the time belongs to the granted try. Only in a fair lock's queue, and
//! while a try may still be granted, a waiter retains its owner.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uuid::{Builder, Uuid};

use crate::error::Error;
use crate::model::sync::thread::{self, ThreadId};

/// One client of one process, as the source of its owners.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: Uuid,
    started: Instant,
    /// The last number of a permit or a request. Scripts compare these numbers as Lua numbers, so
    /// the numbers stay small.
    drawn: AtomicU64,
    /// The last number of a lock's hold, without [`TIMED`] and [`WATCHED`].
    drawn_for_locks: AtomicU64,
}

/// The bit of a number with a time and [`WATCHED`]. The next higher bit is the sign of Java's and
/// Lua's integers.
const TIMED: u64 = 1 << 62;
/// The bit of a watched hold's number.
const WATCHED: u64 = 1;
/// The bits of the sequence, between [`WATCHED`] and the milliseconds since the client's start.
const SEQUENCE: u32 = 21;
/// The bits of these milliseconds: 34 years.
const MILLIS: u32 = 40;

impl ClientId {
    /// Draws a new identity for a client started at `started`, by the client's clock.
    ///
    /// The bytes are the operating system's. A generator inside this process would repeat its bytes
    /// in a child of a fork, and each of two clients with one identity would hold the locks of
    /// both. Returns [`Error::Random`] if the system has no random bytes.
    pub(crate) fn new(started: Instant) -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::Random { reason: io::Error::from(error).into() })?;
        let uuid = Builder::from_custom_bytes(bytes).into_uuid();
        let (drawn, drawn_for_locks) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { uuid, started, drawn, drawn_for_locks })
    }

    #[cfg(test)]
    pub(crate) fn random() -> Self {
        use hashed_wheel::{Clock, SystemClock};

        Self::new(SystemClock.now()).unwrap()
    }

    /// Whether `client` is this identity.
    pub(crate) fn is(&self, client: Uuid) -> bool {
        self.uuid == client
    }

    /// Returns when the client started, by the client's clock.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Draws a new owner of a permit or a request, never used before.
    pub(crate) fn next_owner(&self) -> Owner {
        // Relaxed: the number only has to differ. No other memory depends on the number.
        Owner { client: self.uuid, number: self.drawn.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Draws a new owner of a lock's hold acquired at `now`, never used before.
    pub(crate) fn next_lock_owner(&self, now: Instant, watched: bool) -> Owner {
        let age = now.saturating_duration_since(self.started).as_millis();
        let millis = u64::try_from(age).unwrap_or(u64::MAX).min((1 << MILLIS) - 1);
        // The time of the last number, if the clock went back or the sequence has overflowed.
        let next = |last: u64| (last + 1).max(millis << SEQUENCE);
        // Relaxed: as above.
        let update = |last| Some(next(last));
        let last = self.drawn_for_locks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        let number = next(last.unwrap_or_else(|last| last));
        let watched = if watched { WATCHED } else { 0 };
        Owner { client: self.uuid, number: TIMED | (number << 1) | watched }
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uuid.hyphenated().fmt(formatter)
    }
}

/// The owner of one outermost hold. The owner's text is the field of the hash on the server. The
/// text is only built to be sent or shown, so a hundred thousand holds need not store theirs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    client: Uuid,
    number: u64,
}

impl Owner {
    /// Returns half of the client's identity, and the number: as unlikely to repeat as the owner,
    /// and shorter.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        // The half of the UUID with the most random bits.
        let (_, half) = self.client.as_u64_pair();
        let mut bytes = [0; 16];
        let (first, last) = bytes.split_at_mut(8);
        first.copy_from_slice(&half.to_be_bytes());
        last.copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Returns the owner's number, larger than all numbers drawn by the client before.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the parts of the owner's text around the colon: the client's text, and the number.
    pub(crate) fn parts(&self) -> ([u8; 36], u64) {
        let mut client = [0; 36];
        self.client.hyphenated().encode_lower(&mut client);
        (client, self.number)
    }

    /// The owner with this text.
    #[cfg(test)]
    #[cfg_attr(
        not(wheellock_shuttle),
        expect(dead_code, reason = "the simulation's server uses it")
    )]
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let (client, number) = text.split_once(':')?;
        Some(Self { client: client.parse().ok()?, number: number.parse().ok()? })
    }

    /// Whether a text is an owner of this library, by the UUID's version, and not a thread of
    /// Redisson.
    pub(crate) fn is_ours(text: &str) -> bool {
        text.as_bytes().get(14) == Some(&b'8')
    }
}

/// The information in the text of an owner of this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerText<'a> {
    /// The client's identity.
    pub(crate) client: &'a str,
    /// The client's age at the draw, and whether the hold is watched. `None` for a permit's owner.
    pub(crate) drawn: Option<(Duration, bool)>,
}

impl<'a> OwnerText<'a> {
    /// Parses an owner. Returns `None` if the text is not an owner of this library.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (client, number) = text.split_once(':')?;
        let number: u64 = number.parse().ok()?;
        let is_ours = client.len() == 36 && Owner::is_ours(text);
        let millis = (number & (TIMED - 1)) >> (SEQUENCE + 1);
        let drawn =
            (number & TIMED != 0).then(|| (Duration::from_millis(millis), number & WATCHED != 0));
        is_ours.then_some(Self { client, drawn })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.client.hyphenated(), self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

/// The holder within its client, which may nest the hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LocalHolder {
    Thread(ThreadId),
    /// Any thread which gives this name.
    Named(Arc<str>),
    /// The thread with the guard. No later acquire has the same holder, so nothing nests.
    Guard,
}

impl LocalHolder {
    pub(crate) fn current_thread() -> Self {
        Self::Thread(thread::current().id())
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::Named(Arc::from(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_the_clients_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        assert_eq!(client.to_string().len(), 36);
        assert_eq!(client.next_owner().to_string(), format!("{client}:1"));
        assert_eq!(client.next_owner().to_string(), format!("{client}:2"));
    }

    #[test]
    fn lock_owner_encodes_time_and_increases_for_any_clock_reading() {
        let client = ClientId::random();
        let at = |millis| client.started() + Duration::from_millis(millis);
        let mut last = 0;
        for (now, watched, shown) in
            [(0, true, 0), (7, false, 7), (7, true, 7), (3, false, 7), (90_000, true, 90_000)]
        {
            let owner = client.next_lock_owner(at(now), watched);
            assert!(owner.number() > last && i64::try_from(owner.number()).is_ok(), "{owner}");
            last = owner.number();
            let text = owner.to_string();
            let parsed = OwnerText::parse(&text).unwrap();
            assert_eq!(parsed.client, client.to_string());
            assert_eq!(parsed.drawn, Some((Duration::from_millis(shown), watched)));
        }
        let century = client.next_lock_owner(at(100 * 366 * 86_400_000), true);
        assert!(century.number() > last && i64::try_from(century.number()).is_ok());
    }

    #[test]
    fn of_other_owners_no_time_is_known() {
        let permit = ClientId::random().next_owner().to_string();
        assert_eq!(OwnerText::parse(&permit).map(|owner| owner.drawn), Some(None));
        for foreign in ["7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42", "8:1", "", "a:b", "mode"] {
            assert_eq!(OwnerText::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn an_owner_is_told_from_a_thread_of_redissons() {
        assert!(Owner::is_ours(&ClientId::random().next_owner().to_string()));
        assert!(!Owner::is_ours("7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42"));
        assert!(!Owner::is_ours("8"));
    }

    #[test]
    fn owner_bytes_are_half_the_client_uuid_and_a_unique_number() {
        let client = ClientId::random();
        let (first, second) = (client.next_owner().bytes(), client.next_owner().bytes());
        assert_eq!(first[..8], second[..8]);
        assert_eq!((first[15], second[15]), (1, 2));
        assert_ne!(first[..8], ClientId::random().next_owner().bytes()[..8]);
    }
}
