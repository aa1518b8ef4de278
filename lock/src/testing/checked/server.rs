//! The server of a model: the operations' effects in memory, on keyspaces that are stored once.
//!
//! A keyspace is one number in a state, and what an operation does to it is looked up after the
//! first time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::ops::keyspace::Keyspace;
use crate::ops::value::ServerTime;
use crate::testing::checked::search::Mixed;

/// One of the keyspaces that a search has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Keys(u32);

/// All keyspaces that a search has met, each once.
#[derive(Default)]
pub(crate) struct Keyspaces {
    all: RefCell<Vec<Keyspace>>,
    numbers: RefCell<HashMap<Keyspace, Keys>>,
}

impl Keyspaces {
    /// The number of a keyspace at a time. What has expired by then does not count.
    pub(crate) fn intern(&self, keyspace: &Keyspace, now: ServerTime) -> Keys {
        let keyspace = keyspace.at(now).at(ServerTime(0));
        if let Some(keys) = self.numbers.borrow().get(&keyspace) {
            return *keys;
        }
        let mut all = self.all.borrow_mut();
        let keys = Keys(u32::try_from(all.len()).unwrap());
        all.push(keyspace.clone());
        self.numbers.borrow_mut().insert(keyspace, keys);
        keys
    }

    /// The number of the same with other names.
    pub(crate) fn renamed(&self, keys: Keys, rename: impl Fn(&str) -> String) -> Keys {
        let renamed = self.at(keys, ServerTime(0)).renamed(rename);
        self.intern(&renamed, ServerTime(0))
    }

    /// Whether there is nothing at a time.
    pub(crate) fn is_empty(&self, keys: Keys, now: ServerTime) -> bool {
        self.at(keys, now).is_empty()
    }

    /// A copy at a time.
    pub(crate) fn at(&self, keys: Keys, now: ServerTime) -> Keyspace {
        let Keys(number) = keys;
        self.all.borrow()[usize::try_from(number).unwrap()].at(now)
    }
}

/// What was computed before.
pub(crate) type Known<K, V> = RefCell<HashMap<K, V, BuildHasherDefault<Mixed>>>;

/// Looks up a result, or computes it the first time.
pub(crate) fn once<K: std::hash::Hash + Eq, V: Copy>(
    known: &Known<K, V>,
    key: K,
    compute: impl FnOnce() -> V,
) -> V {
    if let Some(value) = known.borrow().get(&key) {
        return *value;
    }
    let value = compute();
    known.borrow_mut().insert(key, value);
    value
}
