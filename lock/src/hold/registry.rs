//! All holds of a client, by name and holder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use crate::events::stats::Gauge;
use crate::hold::cache::HoldCache;
use crate::hold::hold::Hold;
use crate::hold::long_waits::LongWaits;
use crate::hold::named_acquires::NamedAcquires;
use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::sync::{Mutex, MutexGuard};

/// All holds of one client, by name and holder.
///
/// In shards: two threads wait for the same mutex only if their names are in the same shard, and a
/// growing shard is a small part of all.
#[derive(Debug)]
pub(crate) struct HoldRegistry {
    shards: [Mutex<Shard>; SHARDS],
    names: RandomState,
    /// The number of holds in all shards.
    count: Gauge,
    /// The acquires of named owners, which may nest a new hold.
    pub(crate) named: NamedAcquires,
    /// The cached holds.
    pub(crate) cache: HoldCache,
    /// The long waits of threads.
    pub(crate) long_waits: LongWaits,
}

/// A hold of this client for the name of an acquire.
#[derive(Debug)]
pub(crate) enum FoundHold {
    /// The hold of the same holder.
    Own(Arc<Hold>),
    /// A cached hold. Another thread may have taken the hold since.
    Cached(Arc<Hold>),
}

/// The number of shards.
const SHARDS: usize = 64;

/// Holds by the hash of the name: the hash is computed once, and the name is stored once.
type Shard = HashMap<u64, HoldsOfHash, BuildHasherDefault<HashedKey>>;

/// The hasher of a key, which is a hash.
#[derive(Debug, Default)]
struct HashedKey(u64);

impl Hasher for HashedKey {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Not used: the key is a number.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The holds of the names with one hash, usually a single hold. There are more for readers, when
/// the client acquires a lost lock again before the lost hold is removed, and when two names have
/// the same hash.
#[derive(Debug)]
enum HoldsOfHash {
    One(Arc<Hold>),
    /// Not a `Vec`, which would make the entry of each single hold larger.
    Several(Box<[Arc<Hold>]>),
}

impl HoldsOfHash {
    /// Returns the holds of all names with this hash.
    fn all(&self) -> &[Arc<Hold>] {
        match self {
            Self::One(hold) => std::slice::from_ref(hold),
            Self::Several(holds) => holds,
        }
    }

    /// Returns the holds of `name`, one of the names with this hash.
    fn of<'a>(&'a self, name: &'a LockName) -> impl Iterator<Item = &'a Arc<Hold>> {
        self.all().iter().filter(move |hold| hold.name == *name)
    }

    /// Adds a hold of the same hash.
    fn add(&mut self, hold: Arc<Hold>) {
        let mut all = self.all().to_vec();
        all.push(hold);
        *self = Self::Several(all.into());
    }
}

impl HoldRegistry {
    /// Makes a registry with at most `max_cached` cached holds.
    pub(crate) fn new(max_cached: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            names: RandomState::new(),
            count: Gauge::default(),
            named: NamedAcquires::default(),
            cache: HoldCache::new(max_cached),
            long_waits: LongWaits::default(),
        }
    }

    /// Returns the hold of this name, holder and layout.
    pub(crate) fn find(
        &self,
        name: &LockName,
        holder: &LocalHolder,
        layout: Layout,
    ) -> Option<Arc<Hold>> {
        let (shard, hash) = self.shard(name);
        let is_it = |hold: &&Arc<Hold>| hold.kind.layout() == layout && hold.belongs_to(holder);
        shard.get(&hash)?.of(name).find(is_it).cloned()
    }

    /// Returns the hold of this name, holder and layout, or else the cached hold of the name.
    pub(crate) fn find_for(
        &self,
        name: &LockName,
        holder: &LocalHolder,
        layout: Layout,
    ) -> Option<FoundHold> {
        let (shard, hash) = self.shard(name);
        let holds = shard.get(&hash)?;
        let is_it = |hold: &&Arc<Hold>| hold.kind.layout() == layout && hold.belongs_to(holder);
        if let Some(own) = holds.of(name).find(is_it) {
            return Some(FoundHold::Own(Arc::clone(own)));
        }
        let mut holds = holds.of(name).filter(|_| !self.cache.is_empty());
        holds.find(|hold| hold.is_cached()).map(|hold| FoundHold::Cached(Arc::clone(hold)))
    }

    /// Returns the cached hold of this name.
    pub(crate) fn find_cached(&self, name: &LockName) -> Option<Arc<Hold>> {
        if self.cache.is_empty() {
            return None;
        }
        let (shard, hash) = self.shard(name);
        shard.get(&hash)?.of(name).find(|hold| hold.is_cached()).cloned()
    }

    /// Returns all holds of this name, of any holder and layout.
    pub(crate) fn of_name(&self, name: &LockName) -> Vec<Arc<Hold>> {
        let (shard, hash) = self.shard(name);
        shard.get(&hash).map(|holds| holds.of(name).cloned().collect()).unwrap_or_default()
    }

    /// Whether `wanted` is true for a hold of this name.
    pub(crate) fn any(&self, name: &LockName, wanted: impl Fn(&Hold) -> bool) -> bool {
        let (shard, hash) = self.shard(name);
        shard.get(&hash).is_some_and(|holds| holds.of(name).any(|hold| wanted(hold)))
    }

    /// Adds a hold, and wakes the other acquires of a named owner, which may nest the hold.
    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        self.add(hold);
        if hold.has_named_holder {
            self.named.granted(&hold.name, |holder| hold.belongs_to(holder));
        }
    }

    /// Adds a hold to its shard.
    fn add(&self, hold: &Arc<Hold>) {
        let (mut shard, hash) = self.shard(&hold.name);
        match shard.entry(hash) {
            Entry::Vacant(entry) => drop(entry.insert(HoldsOfHash::One(Arc::clone(hold)))),
            Entry::Occupied(mut entry) => entry.get_mut().add(Arc::clone(hold)),
        }
        // Approximate for readers of the count, which do not lock the shards.
        self.count.up(1);
    }

    /// Removes a hold. A second call does no harm.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        self.cache.unlist(hold);
        let (mut shard, hash) = self.shard(&hold.name);
        let Entry::Occupied(mut entry) = shard.entry(hash) else {
            return;
        };
        let holds = entry.get_mut();
        if let [only] = holds.all() {
            // The usual case.
            if Arc::ptr_eq(only, hold) {
                entry.remove();
                self.count.down(1);
            }
            return;
        }
        let before = holds.all().len();
        let left: Box<[Arc<Hold>]> =
            holds.all().iter().filter(|other| !Arc::ptr_eq(other, hold)).cloned().collect();
        self.count.down(before - left.len());
        if left.is_empty() {
            entry.remove();
        } else {
            *holds = HoldsOfHash::Several(left);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                shard.lock().values().flat_map(HoldsOfHash::all).cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    /// Calls `look` for every hold, with one shard locked at a time.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Hold)) {
        for shard in &self.shards {
            shard.lock().values().flat_map(HoldsOfHash::all).for_each(|hold| look(hold));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count.now()
    }

    /// Locks the shard of a name. Returns the shard, and the name's hash.
    fn shard(&self, name: &LockName) -> (MutexGuard<'_, Shard>, u64) {
        let hash = self.names.hash_one(name);
        // The table inside a shard uses the lowest bits and the highest.
        let shard = usize::try_from((hash >> 32) % SHARDS as u64).unwrap_or(0);
        (self.shards[shard].lock(), hash)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::clock::origin;
    use crate::model::kind::Kind;
    use crate::model::lease::Lease;
    use crate::model::owner::ClientId;
    use crate::model::sync::is_unparked;
    use crate::ops::by_kind::HoldId;

    #[test]
    fn new_hold_of_a_named_owner_wakes_the_owners_other_acquires() {
        let registry = HoldRegistry::new(0);
        let name = LockName::parse("a").unwrap();
        let holders = ["task", "another"].map(LocalHolder::named);
        let acquires = holders.each_ref().map(|holder| registry.named.begin(&name, holder));
        let [task, another] = acquires.map(Option::unwrap);
        let id = HoldId { kind: Kind::Reentrant, name, owner: ClientId::random().next_owner() };
        let lease = Lease::new(Duration::from_secs(30)).unwrap();
        let [holder, _] = holders;
        registry.insert(&Arc::new(Hold::new(id, holder, lease, true, origin(), None)));
        assert!(is_unparked(task.parker()) && task.take_new_hold());
        assert!(!is_unparked(another.parker()) && !another.take_new_hold());
    }
}
