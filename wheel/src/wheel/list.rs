//! A list of slots that are due at one tick, in the order in which they came.

use super::slab::{Links, NOWHERE, Slab};

/// The ends of a doubly linked list whose links stand in the slots themselves, so that taking an entry out of the
/// middle needs no search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
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
        *slab.links_mut(index) = Links { previous: self.tail, next: NOWHERE };
        if self.tail == NOWHERE {
            self.head = index;
        } else {
            slab.links_mut(self.tail).next = index;
        }
        self.tail = index;
    }

    /// Closes the gap that an entry at one of the ends has left, or at both.
    pub(super) fn close_gap<T>(&mut self, slab: &mut Slab<T>, Links { previous, next }: Links) {
        if previous == NOWHERE {
            self.head = next;
        } else {
            slab.links_mut(previous).next = next;
        }
        if next == NOWHERE {
            self.tail = previous;
        } else {
            slab.links_mut(next).previous = previous;
        }
    }

    /// Puts all of `later` behind what stands here.
    pub(super) fn append<T>(&mut self, slab: &mut Slab<T>, later: Self) {
        if self.is_empty() {
            *self = later;
        } else if !later.is_empty() {
            slab.links_mut(self.tail).next = later.head;
            slab.links_mut(later.head).previous = self.tail;
            self.tail = later.tail;
        }
    }

    /// The indexes of the entries, from the first to the last.
    pub(super) fn iter<T>(self, slab: &Slab<T>) -> impl Iterator<Item = u32> {
        core::iter::successors(self.front(), |index| {
            let next = slab.links(*index).next;
            (next != NOWHERE).then_some(next)
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
            let index = slab.insert(NonZeroU64::MIN, value).index();
            list.push_back(slab, index);
            index
        })
    }

    #[test]
    fn entries_leave_from_both_ends_and_from_the_middle() {
        let mut slab = Slab::new();
        let mut list = List::EMPTY;
        let [first, second, third] = three(&mut slab, &mut list);
        assert!(list.has_at_an_end(first) && list.has_at_an_end(third));
        assert!(!list.has_at_an_end(second));
        let links = slab.links(second);
        assert!(links.close_gap(&mut slab), "it has neighbours on both sides");
        assert_eq!(list.iter(&slab).collect::<Vec<_>>(), [first, third]);
        let links = slab.links(first);
        assert!(!links.close_gap(&mut slab), "the list's head changes");
        list.close_gap(&mut slab, links);
        assert_eq!(list.iter(&slab).collect::<Vec<_>>(), [third]);
        let links = slab.links(third);
        list.close_gap(&mut slab, links);
        assert_eq!(list, List::EMPTY);
    }

    #[test]
    fn a_list_is_put_behind_another_and_links_both_ways() {
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
        assert!(early.has_at_an_end(sixth));
    }
}
