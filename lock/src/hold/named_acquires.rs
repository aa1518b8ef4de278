//! The present acquires of named owners. Several threads of one owner may acquire the same lock at
//! the same time. The threads try at the server one after another, and a grant to one thread is the
//! hold of all.
//!
//! The order is of tries, not of acquires: in a queue of acquires a single try would wait behind a
//! sleeping thread. The owner on the server is new for each hold, as for any holder.

use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::sync::{Mutex, Parker};

/// The acquires of one client's named owners.
#[derive(Debug, Default)]
pub(crate) struct NamedAcquires(Mutex<Vec<NamedEntry>>);

/// One acquire of a named owner, as listed.
#[derive(Debug)]
struct NamedEntry {
    name: LockName,
    holder: LocalHolder,
    parker: Parker,
    try_state: TryState,
    /// Whether the owner was granted a hold of the name since the last
    /// [`NamedAcquire::take_new_hold`].
    has_new_hold: bool,
}

/// The progress of an acquire with its try at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TryState {
    /// The acquire does not try, and awaits no try.
    Idle,
    /// The acquire waits until the try of another acquire of the owner is over.
    Awaited,
    /// The acquire tries at the server.
    Running,
}

impl NamedEntry {
    /// Whether this is an acquire of `name` by `holder`.
    fn is_of(&self, name: &LockName, holder: &LocalHolder) -> bool {
        self.name == *name && self.holder == *holder
    }
}

impl NamedAcquires {
    /// Lists an acquire, if `holder` is a named owner. Returns `None` for any other holder, which
    /// acquires with one thread.
    pub(crate) fn begin(&self, name: &LockName, holder: &LocalHolder) -> Option<NamedAcquire<'_>> {
        let LocalHolder::Named(_) = holder else { return None };
        let (name, holder, parker) = (name.clone(), holder.clone(), Parker::new());
        self.0.lock().push(NamedEntry {
            name,
            holder,
            parker: parker.clone(),
            try_state: TryState::Idle,
            has_new_hold: false,
        });
        Some(NamedAcquire { all: self, parker })
    }

    /// Notifies the acquires of `name` by the same owner (`is_holder`) of a new hold in the
    /// registry, which each acquire may nest.
    pub(crate) fn granted(&self, name: &LockName, is_holder: impl Fn(&LocalHolder) -> bool) {
        for entry in &mut *self.0.lock() {
            if entry.name == *name && is_holder(&entry.holder) {
                entry.has_new_hold = true;
                entry.parker.unpark();
            }
        }
    }
}

/// One acquire of a named owner. Dropping the value ends the acquire.
#[derive(Debug)]
pub(crate) struct NamedAcquire<'a> {
    all: &'a NamedAcquires,
    parker: Parker,
}

impl NamedAcquire<'_> {
    /// Returns the parker, which is unparked when the owner has a new hold of the name, and when an
    /// [awaited try](Self::begin_try) is over.
    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    /// Whether the owner was granted a hold of the name since the last call.
    pub(crate) fn take_new_hold(&self) -> bool {
        let mut all = self.all.0.lock();
        let own = self.index(&all);
        own.is_some_and(|own| std::mem::take(&mut all[own].has_new_hold))
    }

    /// Begins a try at the server. Returns `None` while another acquire of the owner and the name
    /// tries: the end of the other try unparks this acquire. A grant is in the registry of holds
    /// before a try ends.
    pub(crate) fn begin_try(&self) -> Option<NamedTry<'_>> {
        let mut all = self.all.0.lock();
        let own = self.index(&all)?;
        let NamedEntry { name, holder, .. } = &all[own];
        let is_taken =
            |other: &NamedEntry| other.try_state == TryState::Running && other.is_of(name, holder);
        if all.iter().any(is_taken) {
            all[own].try_state = TryState::Awaited;
            return None;
        }
        all[own].try_state = TryState::Running;
        Some(NamedTry(self))
    }

    /// Ends the try, and unparks the acquires of the owner and the name that await its end.
    fn end_try(&self) {
        let mut all = self.all.0.lock();
        let Some(own) = self.index(&all) else { return };
        all[own].try_state = TryState::Idle;
        let NamedEntry { name, holder, .. } = &all[own];
        let waits =
            |other: &&NamedEntry| other.try_state == TryState::Awaited && other.is_of(name, holder);
        all.iter().filter(waits).for_each(|other| other.parker.unpark());
    }

    /// Returns the index of this acquire in the list.
    fn index(&self, all: &[NamedEntry]) -> Option<usize> {
        all.iter().position(|entry| entry.parker.is(&self.parker))
    }
}

impl Drop for NamedAcquire<'_> {
    fn drop(&mut self) {
        self.all.0.lock().retain(|entry| !entry.parker.is(&self.parker));
    }
}

/// A try of a named owner at the server. Dropping the value ends the try.
#[derive(Debug)]
pub(crate) struct NamedTry<'a>(&'a NamedAcquire<'a>);

impl Drop for NamedTry<'_> {
    fn drop(&mut self) {
        self.0.end_try();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sync::is_unparked;

    #[test]
    fn acquires_of_one_owner_and_name_try_one_after_another() {
        let all = NamedAcquires::default();
        let (name, other) = (LockName::parse("a").unwrap(), LockName::parse("b").unwrap());
        let begin = |name, owner| all.begin(name, &LocalHolder::named(owner)).unwrap();
        let (one, two) = (begin(&name, "task"), begin(&name, "task"));
        let others = [begin(&other, "task"), begin(&name, "another")];
        let first = one.begin_try().unwrap();
        assert!(two.begin_try().is_none());
        assert!(others.iter().all(|other| other.begin_try().is_some()));
        assert!(!is_unparked(two.parker()));
        drop(first);
        assert!(is_unparked(two.parker()) && !is_unparked(one.parker()));
        assert!(others.iter().all(|other| !is_unparked(other.parker())));
        assert!(two.begin_try().is_some());
        assert!(all.begin(&name, &LocalHolder::current_thread()).is_none());
        drop((one, two, others));
        assert!(all.0.lock().is_empty());
    }

    #[test]
    fn new_hold_is_reported_once_to_acquires_of_its_owner_and_name() {
        let all = NamedAcquires::default();
        let (name, other) = (LockName::parse("a").unwrap(), LockName::parse("b").unwrap());
        let task = LocalHolder::named("task");
        let begin = |name, owner| all.begin(name, &LocalHolder::named(owner)).unwrap();
        let acquires = [begin(&name, "task"), begin(&name, "another"), begin(&other, "task")];
        all.granted(&name, |holder| *holder == task);
        let told = || acquires.each_ref().map(NamedAcquire::take_new_hold);
        assert_eq!(told(), [true, false, false]);
        assert_eq!(told(), [false; 3]);
    }
}
