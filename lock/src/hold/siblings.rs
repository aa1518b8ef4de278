//! The acquires of named owners that are under way. Several threads of one owner may acquire the
//! same lock at the same time, and what one of them is granted is the hold of all (DESIGN:
//! re-entry).

use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::sync::{Mutex, Parker};

/// The acquires of one client's named owners.
#[derive(Debug, Default)]
pub(crate) struct Siblings(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    name: LockName,
    holder: LocalHolder,
    parker: Parker,
    /// Whether it waits for a reply of the server. Once it does not, a grant is in the registry of
    /// holds.
    has_request: bool,
    /// Whether it waits until no sibling has a request in flight.
    awaits_siblings: bool,
}

impl Entry {
    /// Whether the two are acquires of one owner and one name.
    fn is_sibling(&self, other: &Self) -> bool {
        !self.parker.is(&other.parker) && self.name == other.name && self.holder == other.holder
    }
}

impl Siblings {
    /// Adds an acquire, if its holder is a named owner: of all others, one thread alone acquires.
    pub(crate) fn begin(
        &self,
        name: &LockName,
        holder: &LocalHolder,
    ) -> Option<SiblingAcquire<'_>> {
        let LocalHolder::Named(_) = holder else { return None };
        let parker = Parker::new();
        self.0.lock().push(Entry {
            name: name.clone(),
            holder: holder.clone(),
            parker: parker.clone(),
            has_request: false,
            awaits_siblings: false,
        });
        Some(SiblingAcquire { siblings: self, parker })
    }

    /// There is a new hold of this name. Its holder's other acquires may nest it.
    pub(crate) fn granted(&self, name: &LockName, is_holder: impl Fn(&LocalHolder) -> bool) {
        for entry in self.0.lock().iter() {
            if entry.name == *name && is_holder(&entry.holder) {
                entry.parker.unpark();
            }
        }
    }
}

/// One of the acquires. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SiblingAcquire<'a> {
    siblings: &'a Siblings,
    parker: Parker,
}

impl SiblingAcquire<'_> {
    /// Unparked when its owner has a new hold of the name, and when a sibling has a reply for which
    /// this one [waits](Self::siblings_have_request).
    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    /// Its request is in flight until the returned guard is dropped.
    pub(crate) fn begin_request(&self) -> RequestInFlight<'_> {
        self.set_has_request(true);
        RequestInFlight(self)
    }

    /// Whether a sibling has a request in flight. If so, this one is unparked when the reply is
    /// there.
    pub(crate) fn siblings_have_request(&self) -> bool {
        let mut all = self.siblings.0.lock();
        let Some(own) = self.index(&all) else { return false };
        let found = all.iter().any(|other| other.has_request && other.is_sibling(&all[own]));
        all[own].awaits_siblings = found;
        found
    }

    fn set_has_request(&self, has_request: bool) {
        let mut all = self.siblings.0.lock();
        let Some(own) = self.index(&all) else { return };
        all[own].has_request = has_request;
        if !has_request {
            // Not those that wait for their turn: they would all wake at each attempt.
            let waits = |other: &&Entry| other.awaits_siblings && other.is_sibling(&all[own]);
            all.iter().filter(waits).for_each(|other| other.parker.unpark());
        }
    }

    fn index(&self, all: &[Entry]) -> Option<usize> {
        all.iter().position(|entry| entry.parker.is(&self.parker))
    }
}

impl Drop for SiblingAcquire<'_> {
    fn drop(&mut self) {
        self.siblings.0.lock().retain(|entry| !entry.parker.is(&self.parker));
    }
}

/// An acquire that waits for a reply of the server.
#[derive(Debug)]
pub(crate) struct RequestInFlight<'a>(&'a SiblingAcquire<'a>);

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.set_has_request(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquires_of_one_owner_and_name_see_each_others_requests_and_no_others() {
        let siblings = Siblings::default();
        let (name, other) = (LockName::parse("a").unwrap(), LockName::parse("b").unwrap());
        let begin = |name, owner| siblings.begin(name, &LocalHolder::named(owner)).unwrap();
        let (one, two) = (begin(&name, "task"), begin(&name, "task"));
        let others = [begin(&other, "task"), begin(&name, "another")];
        let request = one.begin_request();
        assert!(two.siblings_have_request() && !one.siblings_have_request());
        assert!(!others.iter().any(SiblingAcquire::siblings_have_request));
        drop(request);
        assert!(!two.siblings_have_request());
        assert!(siblings.begin(&name, &LocalHolder::current_thread()).is_none());
        drop((one, two, others));
        assert!(siblings.0.lock().is_empty());
    }
}
