//! A bucket: a doubly linked list of slots that are due at one tick, in the order in which they came.

use super::slab::{NOWHERE, Slab};

/// The ends of a list whose links stand in the slots themselves, so that taking an entry out of the middle needs no
/// search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    head: u32,
    tail: u32,
}

impl Bucket {
    pub(super) const EMPTY: Self = Self { head: NOWHERE, tail: NOWHERE };

    pub(super) const fn is_empty(self) -> bool {
        self.head == NOWHERE
    }

    pub(super) fn front(self) -> Option<u32> {
        (self.head != NOWHERE).then_some(self.head)
    }

    /// Whether `index` is the first or the last of this list. Only such an entry changes the list's ends when it goes.
    pub(super) const fn has_at_an_end(self, index: u32) -> bool {
        self.head == index || self.tail == index
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, index: u32) {
        let slot = slab.slot_mut(index);
        slot.previous = self.tail;
        slot.next = NOWHERE;
        if self.tail == NOWHERE {
            self.head = index;
        } else {
            slab.slot_mut(self.tail).next = index;
        }
        self.tail = index;
    }

    /// Takes an entry of this list out of it.
    pub(super) fn unlink<T>(&mut self, slab: &mut Slab<T>, index: u32) {
        let slot = slab.slot(index);
        let (previous, next) = (slot.previous, slot.next);
        if previous == NOWHERE {
            debug_assert_eq!(self.head, index, "an entry without a predecessor is the first");
            self.head = next;
        } else {
            slab.slot_mut(previous).next = next;
        }
        if next == NOWHERE {
            debug_assert_eq!(self.tail, index, "an entry without a successor is the last");
            self.tail = previous;
        } else {
            slab.slot_mut(next).previous = previous;
        }
    }
}

/// Takes an entry that is neither the first nor the last out of its list, whichever list that is.
pub(super) fn join_neighbours<T>(slab: &mut Slab<T>, index: u32) {
    let slot = slab.slot(index);
    let (previous, next) = (slot.previous, slot.next);
    slab.slot_mut(previous).next = next;
    slab.slot_mut(next).previous = previous;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_from_both_ends_and_from_the_middle() {
        let mut slab = Slab::new();
        let mut bucket = Bucket::EMPTY;
        let [first, second, third] = ['a', 'b', 'c'].map(|value| {
            let index = slab.insert(7, value).index();
            bucket.push_back(&mut slab, index);
            index
        });
        assert!(bucket.has_at_an_end(first) && bucket.has_at_an_end(third));
        assert!(!bucket.has_at_an_end(second));
        bucket.unlink(&mut slab, second);
        assert_eq!(bucket.front(), Some(first));
        bucket.unlink(&mut slab, first);
        assert_eq!(bucket.front(), Some(third));
        bucket.unlink(&mut slab, third);
        assert!(bucket.is_empty());
    }
}
