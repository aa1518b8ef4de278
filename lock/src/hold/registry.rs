//! All holds of a client, by name and holder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::events::stats::Gauge;
use crate::hold::hold::Hold;
use crate::hold::siblings::Siblings;
use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::sync::Mutex;

/// All holds of one client, by name and holder.
///
/// In shards: two threads wait for each other only if their names are in the same shard, and when a
/// shard grows it is one of many.
#[derive(Debug)]
pub(crate) struct HoldRegistry {
    shards: [Mutex<Shard>; SHARDS],
    names: RandomState,
    /// How many there are in all.
    count: Gauge,
    /// The acquires that may nest a new hold.
    pub(crate) siblings: Siblings,
}

const SHARDS: usize = 64;

type Shard = HashMap<LockName, HoldsOfName>;

/// The holds of one name. Usually it is one. There are more for readers, and when the client
/// acquires a lock again that it has lost, before the lost hold is removed.
#[derive(Debug)]
enum HoldsOfName {
    One(Arc<Hold>),
    /// Not a `Vec`, which would make the entry of each single hold larger.
    Several(Box<[Arc<Hold>]>),
}

impl HoldsOfName {
    fn all(&self) -> &[Arc<Hold>] {
        match self {
            Self::One(hold) => std::slice::from_ref(hold),
            Self::Several(holds) => holds,
        }
    }

    fn add(&mut self, hold: Arc<Hold>) {
        let mut all = self.all().to_vec();
        all.push(hold);
        *self = Self::Several(all.into());
    }
}

impl Default for HoldRegistry {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            names: RandomState::new(),
            count: Gauge::default(),
            siblings: Siblings::default(),
        }
    }
}

impl HoldRegistry {
    /// The hold of this name, holder and layout.
    pub(crate) fn find(
        &self,
        name: &LockName,
        holder: &LocalHolder,
        layout: Layout,
    ) -> Option<Arc<Hold>> {
        let shard = self.shard(name).lock();
        let is_it = |hold: &&Arc<Hold>| hold.kind.layout() == layout && hold.belongs_to(holder);
        shard.get(name)?.all().iter().find(is_it).cloned()
    }

    pub(crate) fn of_name(&self, name: &LockName) -> Vec<Arc<Hold>> {
        self.shard(name).lock().get(name).map(|holds| holds.all().to_vec()).unwrap_or_default()
    }

    /// Whether a hold of this name is as `wanted`.
    pub(crate) fn any(&self, name: &LockName, wanted: impl Fn(&Hold) -> bool) -> bool {
        let shard = self.shard(name).lock();
        shard.get(name).is_some_and(|holds| holds.all().iter().any(|hold| wanted(hold)))
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        self.add(hold);
        if hold.has_named_holder {
            self.siblings.granted(&hold.name, |holder| hold.belongs_to(holder));
        }
    }

    fn add(&self, hold: &Arc<Hold>) {
        let mut shard = self.shard(&hold.name).lock();
        match shard.entry(hold.name.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(HoldsOfName::One(Arc::clone(hold)))),
            Entry::Occupied(mut entry) => entry.get_mut().add(Arc::clone(hold)),
        }
        // Approximate for its readers: they do not lock the shards.
        self.count.up(1);
    }

    /// Removes a hold. Doing so twice does no harm.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut shard = self.shard(&hold.name).lock();
        let Entry::Occupied(mut entry) = shard.entry(hold.name.clone()) else {
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
            *holds = HoldsOfName::Several(left);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                shard.lock().values().flat_map(HoldsOfName::all).cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    pub(crate) fn drain(&self) -> Vec<Arc<Hold>> {
        let drained: Vec<Arc<Hold>> = self
            .shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *shard.lock()).into_values())
            .flat_map(|holds| holds.all().to_vec())
            .collect();
        self.count.down(drained.len());
        drained
    }

    pub(crate) fn len(&self) -> usize {
        self.count.now()
    }

    fn shard(&self, name: &LockName) -> &Mutex<Shard> {
        let hash = usize::try_from(self.names.hash_one(name) % SHARDS as u64).unwrap_or(0);
        &self.shards[hash]
    }
}
