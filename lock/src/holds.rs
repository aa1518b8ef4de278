//! The book of all holds of a client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hold::Hold;
use crate::kind::Layout;
use crate::name::LockName;
use crate::owner::Holder;
use crate::statistics::Level;

/// All holds of one client, by name and holder.
///
/// In many small books: no two threads wait for each other unless their names fall into the same one, and when a book
/// grows it is one of many.
#[derive(Debug)]
pub(crate) struct Holds {
    books: [Mutex<Book>; BOOKS],
    names: RandomState,
    /// How many there are in all.
    count: Level,
}

const BOOKS: usize = 64;

type Book = HashMap<LockName, Holders>;

/// The holds of one name: one, except while a thread holds a lock that it has lost, or another thread of the client has
/// taken over what this one has lost.
#[derive(Debug)]
enum Holders {
    One(Arc<Hold>),
    /// Not a `Vec`: it would make the entry of each single hold larger.
    Several(Box<[Arc<Hold>]>),
}

impl Holders {
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

impl Default for Holds {
    fn default() -> Self {
        Self {
            books: std::array::from_fn(|_| Mutex::default()),
            names: RandomState::new(),
            count: Level::new("wheellock_held"),
        }
    }
}

impl Holds {
    /// The hold of this name, holder and layout.
    pub(crate) fn find(
        &self,
        name: &LockName,
        holder: &Holder,
        layout: Layout,
    ) -> Option<Arc<Hold>> {
        let book = self.book(name).lock();
        let is_it = |hold: &&Arc<Hold>| hold.is_of(holder) && hold.kind.layout() == layout;
        book.get(name)?.all().iter().find(is_it).cloned()
    }

    pub(crate) fn of_name(&self, name: &LockName) -> Vec<Arc<Hold>> {
        self.book(name).lock().get(name).map(|holders| holders.all().to_vec()).unwrap_or_default()
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        let mut book = self.book(&hold.name).lock();
        match book.entry(hold.name.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(Holders::One(Arc::clone(hold)))),
            Entry::Occupied(mut entry) => entry.get_mut().add(Arc::clone(hold)),
        }
        // It protects nothing, and whoever looks at it expects no more than about so many.
        self.count.up(1);
    }

    /// Strikes it out. Doing so twice does no harm.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut book = self.book(&hold.name).lock();
        let Entry::Occupied(mut entry) = book.entry(hold.name.clone()) else {
            return;
        };
        let holders = entry.get_mut();
        if let [only] = holders.all() {
            // As it mostly is.
            if Arc::ptr_eq(only, hold) {
                entry.remove();
                self.count.down(1);
            }
            return;
        }
        let before = holders.all().len();
        let left: Box<[Arc<Hold>]> =
            holders.all().iter().filter(|other| !Arc::ptr_eq(other, hold)).cloned().collect();
        self.count.down(before - left.len());
        if left.is_empty() {
            entry.remove();
        } else {
            *holders = Holders::Several(left);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.books
            .iter()
            .flat_map(|book| {
                book.lock().values().flat_map(Holders::all).cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    pub(crate) fn drain(&self) -> Vec<Arc<Hold>> {
        let drained: Vec<Arc<Hold>> = self
            .books
            .iter()
            .flat_map(|book| std::mem::take(&mut *book.lock()).into_values())
            .flat_map(|holders| holders.all().to_vec())
            .collect();
        self.count.down(drained.len());
        drained
    }

    pub(crate) fn len(&self) -> usize {
        self.count.now()
    }

    fn book(&self, name: &LockName) -> &Mutex<Book> {
        let hash = usize::try_from(self.names.hash_one(name) % BOOKS as u64).unwrap_or(0);
        &self.books[hash]
    }
}
