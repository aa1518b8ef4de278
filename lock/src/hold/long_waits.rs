//! The long waits of this client's threads, and the holds of these threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::hold::registry::HoldRegistry;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::sync::thread;
use crate::model::sync::{Mutex, Parker};
use crate::model::wait_graph::{LongWait, Need, ThreadHold, WaitId};
use crate::ops::long_waits::{Began, LONGEST_NAME, encode};

/// From which age a wait is listed. Programs with shorter waits pay nothing.
pub(crate) const LONG: Duration = Duration::from_secs(1);

/// The time between two searches for deadlocks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// The time between two writes of the record because of waits. Shorter than [`LOOK_INTERVAL`]: a
/// record requested by a search is there for the next search.
pub(crate) const WRITE_INTERVAL: Duration = Duration::from_millis(150);

/// The largest number of listed waits of one client.
const MOST: usize = 64;

/// The waits of a client, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct LongWaits {
    list: Mutex<List>,
    /// The number of waits in the list, which is read without the mutex.
    count: AtomicUsize,
}

/// The listed waits, and the times of searches for deadlocks and of the record.
#[derive(Debug, Default)]
struct List {
    waits: BTreeMap<u64, ListedWait>,
    last_number: u64,
    /// When a waiter is to search for deadlocks.
    look_at: Option<Instant>,
    last_look: Option<Instant>,
    /// When the record was last written, by the server's clock in ms.
    written: i64,
}

/// A wait in the list, and its state on this client.
#[derive(Debug)]
struct ListedWait {
    /// The wait as in the record. `client` is not used. `since` is zero until the server has the
    /// wait.
    wait: LongWait,
    began: Instant,
    parker: Parker,
    /// The cycle with which the wait is to end.
    failed: Option<String>,
    /// Whether a cycle with this wait was reported.
    is_reported: bool,
}

/// The waits in a record: as a field of the record, and the age of each.
#[derive(Debug, Default)]
pub(crate) struct NamedWaits {
    pub(crate) field: String,
    /// The number of each wait, and its age in ms.
    ages: Vec<(u64, i64)>,
}

/// A listed wait of the current thread. Dropping this value removes the wait from the list.
#[derive(Debug)]
pub(crate) struct ListedUntilDropped<'a> {
    waits: &'a LongWaits,
    number: u64,
}

/// Returns the holds which the current thread cannot release during its wait. Not among the holds
/// are unrenewed holds, which end by themselves, permits, which any thread may give back, and a
/// hold given to the thread since its wait `began`, which ends the wait.
fn held_by_thread(holds: &HoldRegistry, began: Instant, now: Instant) -> Vec<ThreadHold> {
    let holder = LocalHolder::Thread(thread::current().id());
    let mut own = Vec::new();
    holds.for_each(|hold| {
        if hold.kind != Kind::Permit
            && hold.belongs_to(&holder)
            && hold.is_held(now)
            && hold.watched_lease().is_some()
            && hold.since() <= began
        {
            let (number, name) = (hold.owner.number(), hold.name.as_str().to_owned());
            own.push(ThreadHold { number, name });
        }
    });
    own
}

impl LongWaits {
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether a wait for this name can be listed.
    pub(crate) fn can_list(name: &LockName) -> bool {
        name.as_str().len() <= LONGEST_NAME
    }

    /// Lists a wait of the current thread for `name`, which `began` in the past and sleeps on
    /// `parker`, together with the thread's holds. Returns `None` if the list is full.
    pub(crate) fn list(
        &self,
        holds: &HoldRegistry,
        (name, need): (&LockName, Need),
        (began, now): (Instant, Instant),
        may_fail: bool,
        parker: &Parker,
    ) -> Option<ListedUntilDropped<'_>> {
        // With the list unlocked: there may be a million holds.
        let own = held_by_thread(holds, began, now);
        let mut list = self.list.lock();
        if list.waits.len() >= MOST {
            return None;
        }
        list.last_number += 1;
        let number = list.last_number;
        let wait = LongWait {
            id: WaitId { client: String::new(), number },
            since: 0,
            may_fail,
            need,
            name: name.as_str().to_owned(),
            thread: thread::current().name().unwrap_or_default().to_owned(),
            holds: own,
        };
        let (parker, failed) = (parker.clone(), None);
        list.waits.insert(number, ListedWait { wait, began, parker, failed, is_reported: false });
        self.count.store(list.waits.len(), Ordering::Relaxed);
        Some(ListedUntilDropped { waits: self, number })
    }

    /// Encodes the waits for the client's record, as far as there is room. Returns `None` without
    /// waits.
    pub(crate) fn named(&self, now: Instant) -> Option<NamedWaits> {
        if self.is_empty() {
            return None;
        }
        let list = self.list.lock();
        let age = |listed: &ListedWait| now.saturating_duration_since(listed.began);
        let began = |listed: &ListedWait| match listed.wait.since {
            0 => Began::Ago(age(listed)),
            at => Began::At(at),
        };
        let waits = list.waits.values().map(|listed| (began(listed), &listed.wait));
        let (field, written) = encode(waits);
        let millis = |age: Duration| i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let named = list.waits.iter().take(written);
        let ages = named.map(|(number, listed)| (*number, millis(age(listed)))).collect();
        (!field.is_empty()).then_some(NamedWaits { field, ages })
    }

    /// Notes that the record has the waits `named` since `written`, by the server's clock. Has a
    /// waiter search for deadlocks.
    pub(crate) fn are_written(&self, named: &NamedWaits, written: i64, now: Instant) {
        let mut list = self.list.lock();
        list.written = written;
        for (number, age) in &named.ages {
            if let Some(listed) = list.waits.get_mut(number)
                && listed.wait.since == 0
            {
                // The same time as the record's readers compute.
                listed.wait.since = written.saturating_sub(*age);
            }
        }
        list.look_at(now);
    }

    /// Has a waiter search for deadlocks at this time, or earlier if planned before.
    pub(crate) fn look_at(&self, at: Instant) {
        self.list.lock().look_at(at);
    }

    /// Returns the waits in the record, with `client` as their client, and when the record was
    /// written.
    pub(crate) fn own(&self, client: &str) -> (Vec<LongWait>, i64) {
        let list = self.list.lock();
        let named = list.waits.values().filter(|listed| listed.wait.since != 0);
        let own = named.map(|listed| {
            let id = WaitId { client: client.to_owned(), number: listed.wait.id.number };
            LongWait { id, ..listed.wait.clone() }
        });
        (own.collect(), list.written)
    }

    /// Whether the wait is still listed.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.list.lock().waits.contains_key(&number)
    }

    /// Marks these waits as reported with a cycle. Returns `false` if all were marked before.
    pub(crate) fn set_reported(&self, numbers: &[u64]) -> bool {
        let mut list = self.list.lock();
        let mut is_new = false;
        for number in numbers {
            if let Some(listed) = list.waits.get_mut(number) {
                is_new |= !std::mem::replace(&mut listed.is_reported, true);
            }
        }
        is_new
    }

    /// Ends a wait, with the description of its cycle, and wakes its thread.
    pub(crate) fn fail(&self, number: u64, cycle: &str) {
        let mut list = self.list.lock();
        if let Some(listed) = list.waits.get_mut(&number) {
            listed.failed = Some(cycle.to_owned());
            listed.parker.unpark();
        }
    }
}

impl List {
    /// Plans a search for deadlocks at this time, but not too soon after the last search, and keeps
    /// an earlier plan. Wakes all listed waiters, which then sleep until the search at most.
    fn look_at(&mut self, at: Instant) {
        let at = self.last_look.map_or(at, |last| at.max(last + LOOK_INTERVAL));
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
        self.waits.values().for_each(|listed| listed.parker.unpark());
    }
}

impl ListedUntilDropped<'_> {
    /// Returns when a waiter is to search for deadlocks; `None` if no search is planned.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.waits.list.lock().look_at
    }

    /// Takes over the planned search for deadlocks, if due. Returns `true` to one waiter for each
    /// search.
    pub(crate) fn takes_search(&self, now: Instant) -> bool {
        let mut list = self.waits.list.lock();
        let is_due = list.look_at.take_if(|at| *at <= now).is_some();
        if is_due {
            list.last_look = Some(now);
        }
        is_due
    }

    /// Returns the cycle with which the wait is to end; `None` if the wait goes on.
    pub(crate) fn failed(&self) -> Option<String> {
        self.waits.list.lock().waits.get(&self.number)?.failed.clone()
    }
}

impl Drop for ListedUntilDropped<'_> {
    fn drop(&mut self) {
        let mut list = self.waits.list.lock();
        list.waits.remove(&self.number);
        self.waits.count.store(list.waits.len(), Ordering::Relaxed);
    }
}
