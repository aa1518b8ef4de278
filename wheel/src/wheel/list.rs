//! A list of slots due at the same tick, in the order of linking.

use super::slab::{Links, NO_SLOT, Slab};

/// The ends of a doubly linked list. The links are in the slots, so removing a slot from the middle
/// needs no search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NO_SLOT, tail: NO_SLOT };

    pub(super) const fn is_empty(self) -> bool {
        self.head == NO_SLOT
    }

    pub(super) fn front(self) -> Option<u32> {
        (self.head != NO_SLOT).then_some(self.head)
    }

    /// Whether `index` is the first or the last slot of this list. Only unlinking such a slot
    /// changes the ends of the list.
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "a branch between the two is taken half of the time, and waits for memory"
    )]
    pub(super) const fn is_at_end(self, index: u32) -> bool {
        (self.head == index) | (self.tail == index)
    }

    #[inline]
    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, index: u32) {
        *slab.links_mut(index) = Links { previous: self.tail, next: NO_SLOT };
        if self.tail == NO_SLOT {
            self.head = index;
        } else {
            slab.links_mut(self.tail).next = index;
        }
        self.tail = index;
    }

    /// Unlinks the first or the last slot of the list, with the links `previous` and `next`.
    pub(super) fn unlink<T>(&mut self, slab: &mut Slab<T>, Links { previous, next }: Links) {
        if previous == NO_SLOT {
            self.head = next;
        } else {
            slab.links_mut(previous).next = next;
        }
        if next == NO_SLOT {
            self.tail = previous;
        } else {
            slab.links_mut(next).previous = previous;
        }
    }

    /// Appends all slots of `later`.
    pub(super) fn append<T>(&mut self, slab: &mut Slab<T>, later: Self) {
        if self.is_empty() {
            *self = later;
        } else if !later.is_empty() {
            slab.links_mut(self.tail).next = later.head;
            slab.links_mut(later.head).previous = self.tail;
            self.tail = later.tail;
        }
    }

    /// The indexes of the slots, from the first to the last.
    pub(super) fn iter<T>(self, slab: &Slab<T>) -> impl Iterator<Item = u32> {
        core::iter::successors(self.front(), |index| {
            let next = slab.links(*index).next;
            (next != NO_SLOT).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::num::NonZeroU64;

    use super::*;

    fn three(slab: &mut Slab<char>, list: &mut List) -> [u32; 3] {
        ['a', 'b', 'c'].map(|value| {
            let index = slab.insert(NonZeroU64::MIN, value, Links::buffered(0)).index();
            list.push_back(slab, index);
            index
        })
    }

    #[test]
    fn slots_are_unlinked_at_both_ends_and_in_the_middle() {
        let mut slab = Slab::new();
        let mut list = List::EMPTY;
        let [first, second, third] = three(&mut slab, &mut list);
        assert!(list.is_at_end(first) && list.is_at_end(third));
        assert!(!list.is_at_end(second));
        let links = slab.links(second);
        assert!(links.unlink(&mut slab), "it has neighbours on both sides");
        assert_eq!(list.iter(&slab).collect::<Vec<_>>(), [first, third]);
        let links = slab.links(first);
        assert!(!links.unlink(&mut slab), "the list's head changes");
        list.unlink(&mut slab, links);
        assert_eq!(list.iter(&slab).collect::<Vec<_>>(), [third]);
        let links = slab.links(third);
        list.unlink(&mut slab, links);
        assert_eq!(list, List::EMPTY);
    }

    #[test]
    fn append_links_two_lists_both_ways() {
        let mut slab = Slab::new();
        let (mut early, mut late) = (List::EMPTY, List::EMPTY);
        early.append(&mut slab, late);
        assert!(early.is_empty());
        let [first, second, third] = three(&mut slab, &mut early);
        let [fourth, fifth, sixth] = three(&mut slab, &mut late);
        early.append(&mut slab, List::EMPTY);
        early.append(&mut slab, late);
        let all = [first, second, third, fourth, fifth, sixth];
        assert_eq!(early.iter(&slab).collect::<Vec<_>>(), all);
        let mut backwards: Vec<_> = all.iter().map(|index| slab.links(*index).previous).collect();
        backwards.remove(0);
        assert_eq!(backwards, all[..5]);
        assert!(early.is_at_end(sixth));
    }
}
