//! A scan of the server as a plain value, the source of all answers.
//!
//! The counts cover all locks. The list of locks is bounded, as an answer must not be as large as
//! the server's data.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use serde::Serialize;
use wheellock::{HolderKind, LockKind, LockStatus};

use super::graph::Graph;
use super::text::visible;
use crate::report;

/// The most locks in an answer, and the most numbers among them. Any program may own a number.
const MOST_LOCKS: usize = 10_000;
const MOST_NUMBERS: usize = 1_000;

/// Approximate limit for all listed locks as JSON, in bytes.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Approximate size of a holder or a queued waiter as JSON, in bytes.
const HOLDER_BYTES: usize = 300;

/// The most prefixes with series of their own.
const MOST_PREFIXES: usize = 100;

/// The most prefixes counted during a scan, and the most letters of a prefix.
const MOST_COUNTED: usize = 10_000;
const MOST_LETTERS: usize = 100;

/// The prefix for all prefixes without series of their own.
const OTHER: &str = "other";

/// The most holds in [`Seen`].
const MOST_SEEN: usize = 1_000_000;

/// The libraries of holders, in the order of the counts.
pub(crate) const LIBRARIES: [&str; 3] = ["wheellock", "redisson", "unknown"];

/// The result of a scan.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The listed locks.
    pub(crate) locks: Vec<Lock>,
    /// The number of unlisted locks.
    pub(crate) left_out: usize,
    /// The number of keys without read permission.
    pub(crate) unreadable: u64,
    /// The number of locks of each kind, and of numbers.
    pub(crate) kinds: BTreeMap<String, u64>,
    /// The counts by prefix: at most [`MOST_PREFIXES`] and [`OTHER`].
    pub(crate) prefixes: BTreeMap<String, Counts>,
    /// Empty until the scanner builds the graph.
    pub(crate) graph: Graph,
    pub(crate) ended: Instant,
    pub(crate) took: Duration,
}

/// A listed lock, as printed by `wheellock list --json`, and the observed ages of the holds.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    held: bool,
    #[serde(flatten)]
    pub(crate) status: LockStatus,
    /// For each holder, the time for which every scan has found the holder.
    seen_for_ms: Vec<u64>,
}

/// The counts of all locks with a common prefix. The arrays are in the order of [`LIBRARIES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) holders: [u64; 3],
    pub(crate) waiters: u64,
    /// Locks whose number of waiters the server does not report.
    pub(crate) waiters_unknown: u64,
    /// Locks without an expiry, by the library of a holder.
    pub(crate) endless: [u64; 3],
    pub(crate) oldest: [Option<Duration>; 3],
}

impl Counts {
    fn add(&mut self, other: &Self) {
        for library in 0..LIBRARIES.len() {
            self.holders[library] += other.holders[library];
            self.endless[library] += other.endless[library];
            self.oldest[library] = self.oldest[library].max(other.oldest[library]);
        }
        self.waiters += other.waiters;
        self.waiters_unknown += other.waiters_unknown;
    }
}

/// The time of the first scan of each hold, retained while every scan finds the hold. Redisson
/// records no times, and renewals change the expiry, so nothing else shows the age of a Redisson
/// hold.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    hasher: RandomState,
    /// The first scan, by the hash of lock and owner.
    since: HashMap<u64, Instant>,
}

/// A scan under way.
pub(crate) struct Scan<'a> {
    separator: &'a str,
    seen: &'a mut Seen,
    still_seen: HashMap<u64, Instant>,
    /// The hashes of the names found so far, as the server may report a key twice.
    found: HashSet<u64>,
    began: Instant,
    locks: Vec<Lock>,
    numbers: usize,
    bytes: usize,
    left_out: usize,
    kinds: BTreeMap<String, u64>,
    prefixes: BTreeMap<String, Counts>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(separator: &'a str, seen: &'a mut Seen, now: Instant) -> Self {
        let kinds = [
            LockKind::Lock,
            LockKind::Fair,
            LockKind::Fenced,
            LockKind::ReadWrite,
            LockKind::Simple,
            LockKind::ExpirableSemaphore,
            LockKind::Number,
        ];
        Self {
            separator,
            seen,
            still_seen: HashMap::new(),
            found: HashSet::new(),
            began: now,
            locks: Vec::new(),
            numbers: 0,
            bytes: 0,
            left_out: 0,
            kinds: kinds.into_iter().map(|kind| (kind.to_string(), 0)).collect(),
            prefixes: BTreeMap::new(),
        }
    }

    /// Counts a lock, and lists the lock if there is room.
    pub(crate) fn add(&mut self, status: LockStatus, now: Instant) {
        if !self.found.insert(self.seen.hasher.hash_one(&status.name)) {
            return;
        }
        if let Some(kind) = status.kind {
            *self.kinds.entry(kind.to_string()).or_default() += 1;
        }
        let seen_for: Vec<Duration> = status
            .holders
            .iter()
            .map(|holder| self.seen_for(&status.name, &holder.owner, now))
            .collect();
        self.count(&status, &seen_for);
        let rows = status.holders.len() + status.waiters.queue.len();
        let bytes = HOLDER_BYTES * (rows + 1) + status.name.len();
        let is_number = status.number.is_some();
        if self.locks.len() >= MOST_LOCKS
            || self.bytes + bytes > MOST_BYTES
            || is_number && self.numbers >= MOST_NUMBERS
        {
            self.left_out += 1;
            return;
        }
        self.bytes += bytes;
        self.numbers += usize::from(is_number);
        let seen_for_ms = seen_for.into_iter().map(millis).collect();
        self.locks.push(Lock { held: report::is_held(&status), status, seen_for_ms });
    }

    /// The time since the first scan to find this owner as a holder of the lock.
    fn seen_for(&mut self, name: &str, owner: &str, now: Instant) -> Duration {
        let hold = self.seen.hasher.hash_one((name, owner));
        let since = self.seen.since.get(&hold).copied().unwrap_or(now);
        if self.still_seen.len() < MOST_SEEN {
            self.still_seen.insert(hold, since);
        }
        now.saturating_duration_since(since)
    }

    fn count(&mut self, status: &LockStatus, seen_for: &[Duration]) {
        let mut counts = Counts::default();
        for (holder, seen_for) in status.holders.iter().zip(seen_for) {
            let library = library(holder.kind);
            counts.holders[library] += 1;
            let age = holder.held_for.unwrap_or(*seen_for);
            counts.oldest[library] = counts.oldest[library].max(Some(age));
        }
        // With very many readers, the status lists only some.
        let unlisted = status.holder_count.saturating_sub(status.holders.len());
        if let Some(first) = status.holders.first() {
            counts.holders[library(first.kind)] += unlisted as u64;
        }
        if let Some(endless) = status.holders.iter().find(|one| one.remaining == Duration::MAX) {
            counts.endless[library(endless.kind)] = 1;
        }
        match status.waiters.elsewhere {
            Some(waiting) => counts.waiters = waiting as u64,
            None => counts.waiters_unknown = 1,
        }
        if counts == Counts::default() {
            return;
        }
        let prefix = status.name.split_once(self.separator).map_or("", |(prefix, _)| prefix);
        let mut prefix = visible(prefix, MOST_LETTERS);
        if self.prefixes.len() >= MOST_COUNTED && !self.prefixes.contains_key(&prefix) {
            OTHER.clone_into(&mut prefix);
        }
        self.prefixes.entry(prefix).or_default().add(&counts);
    }

    /// Ends the scan at `now`. `unreadable` is the number of keys left out.
    pub(crate) fn end(self, unreadable: u64, now: Instant) -> Snapshot {
        self.seen.since = self.still_seen;
        Snapshot {
            locks: self.locks,
            left_out: self.left_out,
            unreadable,
            kinds: self.kinds,
            prefixes: with_own_series(self.prefixes),
            graph: Graph::default(),
            ended: now,
            took: now.saturating_duration_since(self.began),
        }
    }
}

/// Retains the prefixes with the oldest holds, and adds the rest to [`OTHER`].
fn with_own_series(prefixes: BTreeMap<String, Counts>) -> BTreeMap<String, Counts> {
    if prefixes.len() <= MOST_PREFIXES {
        return prefixes;
    }
    let mut sorted: Vec<_> = prefixes.into_iter().collect();
    // A stable sort leaves prefixes of the same age in the order of their names.
    sorted.sort_by_key(|(prefix, counts)| {
        (prefix == OTHER, Reverse(counts.oldest.iter().max().copied()))
    });
    let mut others = Counts::default();
    for (_, counts) in sorted.drain(MOST_PREFIXES..) {
        others.add(&counts);
    }
    let mut kept: BTreeMap<_, _> = sorted.into_iter().collect();
    kept.entry(OTHER.to_owned()).or_default().add(&others);
    kept
}

fn library(kind: HolderKind) -> usize {
    match kind {
        HolderKind::Wheellock => 0,
        HolderKind::Redisson => 1,
        _ => 2,
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The object of a snapshot in `/api`.
#[derive(Serialize)]
pub(crate) struct Object<'a> {
    took_ms: u64,
    holders: u64,
    waiters: u64,
    endless: u64,
    kinds: &'a BTreeMap<String, u64>,
    left_out: usize,
    unreadable: u64,
    locks: &'a [Lock],
    graph: &'a Graph,
}

impl Snapshot {
    /// The listed locks with holders.
    pub(crate) fn held(&self) -> Vec<LockStatus> {
        let statuses = self.locks.iter().map(|lock| &lock.status);
        statuses.filter(|status| !status.holders.is_empty()).cloned().collect()
    }

    pub(crate) fn object(&self) -> Object<'_> {
        let sum = |of: fn(&Counts) -> u64| self.prefixes.values().map(of).sum();
        Object {
            took_ms: millis(self.took),
            holders: sum(|counts| counts.holders.iter().sum()),
            waiters: sum(|counts| counts.waiters),
            endless: sum(|counts| counts.endless.iter().sum()),
            kinds: &self.kinds,
            left_out: self.left_out,
            unreadable: self.unreadable,
            locks: &self.locks,
            graph: &self.graph,
        }
    }
}

#[cfg(test)]
mod tests {
    use wheellock::{Client, Clock as _, ManualClock, Memory};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn snapshot(client: &Client, seen: &mut Seen, now: Instant) -> Snapshot {
        let mut scan = Scan::new(":", seen, now);
        for status in client.locks("*") {
            scan.add(status.unwrap(), now);
        }
        scan.end(0, now)
    }

    #[test]
    fn locks_are_counted_by_prefix_and_library() {
        let client = Client::in_memory();
        let _one = client.lock("orders:1").lock().unwrap();
        let _two = client.fenced_lock("orders:2").lock().unwrap();
        let _three = client.lock("nightly").lock().unwrap();
        let now = ManualClock::new().now();
        let found = snapshot(&client, &mut Seen::default(), now);
        assert_eq!(found.prefixes["orders"].holders, [2, 0, 0]);
        assert_eq!(found.prefixes[""].holders, [1, 0, 0]);
        assert_eq!(found.kinds["fenced"], 1);
        assert_eq!(found.kinds["fair"], 0);
        assert_eq!((found.locks.len(), found.left_out), (3, 0));
        assert!(found.prefixes["orders"].oldest[0].is_some());
    }

    #[test]
    fn a_name_that_comes_twice_is_counted_once() {
        let client = Client::in_memory();
        let _guard = client.lock("orders:1").lock().unwrap();
        let (now, mut seen) = (ManualClock::new().now(), Seen::default());
        let mut scan = Scan::new(":", &mut seen, now);
        for _ in 0..2 {
            scan.add(client.status("orders:1").unwrap(), now);
        }
        assert_eq!(scan.end(0, now).prefixes["orders"].holders, [1, 0, 0]);
    }

    #[test]
    fn a_hold_ages_while_each_scan_finds_the_holder() {
        let client = Client::builder().in_memory(&Memory::new()).build().unwrap();
        let (clock, mut seen) = (ManualClock::new(), Seen::default());
        let start = clock.now();
        let guard = client.lock("a").lock().unwrap();
        assert_eq!(snapshot(&client, &mut seen, start).locks[0].seen_for_ms, [0]);
        assert_eq!(snapshot(&client, &mut seen, start + SECOND).locks[0].seen_for_ms, [1000]);
        drop(guard);
        assert!(snapshot(&client, &mut seen, start + 2 * SECOND).locks.is_empty());
        assert!(seen.since.is_empty());
    }

    #[test]
    fn numbers_and_large_names_leave_room_for_locks() {
        let client = Client::in_memory();
        client.semaphore("free").try_set_permits(1).unwrap();
        let _guard = client.lock("a").lock().unwrap();
        let (now, mut seen) = (ManualClock::new().now(), Seen::default());
        let mut scan = Scan::new(":", &mut seen, now);
        let number = client.status("free").unwrap();
        for place in 0..=MOST_NUMBERS {
            scan.add(renamed(&number, format!("n{place}")), now);
        }
        assert_eq!((scan.locks.len(), scan.left_out), (MOST_NUMBERS, 1));
        let lock = client.status("a").unwrap();
        for place in 0..MOST_BYTES / 65_000 {
            scan.add(renamed(&lock, format!("{place:065000}")), now);
        }
        assert!(scan.left_out > 1 && scan.locks.len() > MOST_NUMBERS + 50);
        assert!(scan.bytes <= MOST_BYTES);
    }

    #[test]
    fn prefixes_are_bounded_and_their_sum_is_right() {
        let client = Client::in_memory();
        let _guard = client.lock("a").lock().unwrap();
        let (now, mut seen) = (ManualClock::new().now(), Seen::default());
        let mut scan = Scan::new(":", &mut seen, now);
        let lock = client.status("a").unwrap();
        let all = MOST_COUNTED + 10;
        for place in 0..all {
            scan.add(renamed(&lock, format!("p{place}:x")), now);
        }
        let found = scan.end(0, now);
        assert_eq!(found.prefixes.len(), MOST_PREFIXES + 1);
        let sum: u64 = found.prefixes.values().map(|counts| counts.holders[0]).sum();
        assert_eq!(sum, all as u64);
        assert_eq!(found.prefixes[OTHER].holders[0], (all - MOST_PREFIXES) as u64);
    }

    fn renamed(status: &LockStatus, name: String) -> LockStatus {
        let mut status = status.clone();
        status.name = name;
        status
    }
}
