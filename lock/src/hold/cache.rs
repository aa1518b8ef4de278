//! The holds that stay with their client between two uses (DESIGN: cache). Pure: time is an argument.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use crate::events::stats::{CacheStats, Gauge};
use crate::hold::hold::Hold;
use crate::model::name::LockName;
use crate::model::sync::Mutex;

/// The cached holds of one client, and the names that other clients want.
#[derive(Debug)]
pub(crate) struct HoldCache {
    /// How many may be listed.
    limit: usize,
    /// Whether an acquire has asked for a lock that may be cached.
    is_used: AtomicBool,
    /// The holds that are cached, or were since the server granted them, by when they became idle.
    listed: Mutex<BinaryHeap<Listed>>,
    /// How many are listed. Acquires that see none look no further.
    count: Gauge,
    wanted: Mutex<Wanted>,
    /// How many names are wanted. Releases that see none look no further.
    wanted_count: Gauge,
    /// Acquires that took a cached hold.
    hits: AtomicU64,
    /// The cached holds that ended, by how.
    ended: [AtomicU64; CacheEnd::COUNT],
}

/// When another client has asked for a name.
#[derive(Debug, Default)]
struct Wanted {
    by_name: HashMap<LockName, Instant>,
    latest: Option<Instant>,
}

/// How a hold ended while it was cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheEnd {
    /// The time was over.
    Expired,
    /// Another client has asked for it, or an acquire of this client that could not take it.
    Revoked,
    /// Too many were cached.
    Evicted,
    /// It was lost.
    Lost,
    /// The client has ended.
    ClientEnded,
}

impl CacheEnd {
    const COUNT: usize = 5;
}

/// For how long a name is not cached after another client has asked for it.
const WANTED_FOR: Duration = Duration::from_secs(1);
/// The most names that are remembered as wanted.
const MAX_WANTED: usize = 1024;

/// A hold in the list, with when it became idle, or was last seen in use.
#[derive(Debug)]
struct Listed {
    since: Instant,
    hold: Arc<Hold>,
}

impl HoldCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            is_used: AtomicBool::new(false),
            listed: Mutex::default(),
            count: Gauge::default(),
            wanted: Mutex::default(),
            wanted_count: Gauge::default(),
            hits: AtomicU64::new(0),
            ended: Default::default(),
        }
    }

    pub(crate) fn count_hit(&self) {
        // Relaxed, as all counts: nothing depends on these numbers.
        self.hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_end(&self, end: CacheEnd) {
        self.ended[end as usize].fetch_add(1, Relaxed);
    }

    /// What was counted.
    pub(crate) fn stats(&self) -> CacheStats {
        let ended = |end: CacheEnd| self.ended[end as usize].load(Relaxed);
        CacheStats {
            cached: self.cached().len(),
            hits: self.hits.load(Relaxed),
            expired: ended(CacheEnd::Expired),
            revoked: ended(CacheEnd::Revoked),
            evicted: ended(CacheEnd::Evicted),
            lost: ended(CacheEnd::Lost),
        }
    }

    /// An acquire asks for a lock that may be cached.
    pub(crate) fn set_used(&self) {
        // Mostly it is set, and the threads share the line.
        if !self.is_used() {
            self.is_used.store(true, Relaxed);
        }
    }

    /// Whether a lock of this client may be cached.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Whether no hold is cached.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.now() == 0
    }

    /// Lists a hold that is cached since `now`. Returns the hold that has been idle longest if there
    /// are too many: that may be the same.
    pub(crate) fn list(&self, hold: &Arc<Hold>, now: Instant) -> Option<Arc<Hold>> {
        let mut listed = self.listed.lock();
        if hold.set_listed(true) {
            return None;
        }
        listed.push(Listed { since: now, hold: Arc::clone(hold) });
        let (mut excess, mut in_use) = (None, Vec::new());
        // Each that was used since it was listed is put back once. That the list is full is rare.
        while excess.is_none()
            && listed.len() + in_use.len() > self.limit
            && let Some(Listed { since, hold }) = listed.pop()
        {
            match hold.cached_since() {
                Some(idle_since) if idle_since > since => {
                    listed.push(Listed { since: idle_since, hold });
                }
                Some(_) => {
                    hold.set_listed(false);
                    excess = Some(hold);
                }
                None => in_use.push(Listed { since: now, hold }),
            }
        }
        listed.extend(in_use);
        self.count.set(listed.len());
        excess
    }

    /// Takes a hold that is over out of the list.
    pub(crate) fn unlist(&self, hold: &Arc<Hold>) {
        if self.is_empty() || !hold.is_listed() {
            return;
        }
        let mut listed = self.listed.lock();
        if hold.set_listed(false) {
            listed.retain(|listed| !Arc::ptr_eq(&listed.hold, hold));
            self.count.set(listed.len());
        }
    }

    /// The holds that are cached.
    pub(crate) fn cached(&self) -> Vec<Arc<Hold>> {
        let listed = self.listed.lock();
        let all = listed.iter().map(|listed| &listed.hold);
        all.filter(|hold| hold.is_cached()).cloned().collect()
    }

    /// Another client has asked for `name`.
    pub(crate) fn set_wanted(&self, name: &LockName, now: Instant) {
        let mut wanted = self.wanted.lock();
        let Wanted { by_name, latest } = &mut *wanted;
        if by_name.len() >= MAX_WANTED {
            by_name.retain(|_, since| is_fresh(*since, now));
        }
        if by_name.len() < MAX_WANTED {
            by_name.insert(name.clone(), now);
            *latest = Some(now);
        }
        self.wanted_count.set(by_name.len());
    }

    /// Whether another client has asked for `name` a moment ago.
    pub(crate) fn is_wanted(&self, name: &LockName, now: Instant) -> bool {
        if self.wanted_count.now() == 0 {
            return false;
        }
        let mut wanted = self.wanted.lock();
        if wanted.latest.is_none_or(|latest| !is_fresh(latest, now)) {
            wanted.by_name.clear();
            self.wanted_count.set(0);
        }
        wanted.by_name.get(name).is_some_and(|since| is_fresh(*since, now))
    }
}

/// Whether a request that came at `since` counts.
pub(crate) fn is_fresh(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < WANTED_FOR
}

/// The first of the heap is the one that became idle first.
impl Ord for Listed {
    fn cmp(&self, other: &Self) -> Ordering {
        Reverse(self.since).cmp(&Reverse(other.since))
    }
}

impl PartialOrd for Listed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Listed {}
