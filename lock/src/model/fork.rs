//! Forks: how a process recognizes that it is a child, and values that each process has for itself.
//!
//! A fork copies the memory at one instant, with only the thread that forks. Whatever another
//! thread was doing stays unfinished in the child: a lock that it held stays locked, a cell that it
//! was filling stays "being filled". So nothing that an ancestor may have been changing is waited
//! for. Values of one process are behind a pointer that is exchanged without a lock and names its
//! process.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub(crate) use hashed_wheel::HomeProcess;

use crate::model::sync::Mutex;

/// A value for each process, made when it is first needed there. An ancestor's is neither waited
/// for nor touched.
pub(crate) struct PerProcess<T> {
    /// The value of this process, of an ancestor, or none.
    newest: ArcSwapOption<Own<T>>,
}

struct Own<T> {
    home: HomeProcess,
    value: Mutex<Option<T>>,
}

impl<T: Clone> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { newest: ArcSwapOption::const_empty() }
    }

    /// This process's value. While one thread makes it, the others of this process wait. An error
    /// is not kept: the next caller tries again.
    pub(crate) fn get_or_try_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let own = self.own();
        let mut value = own.value.lock();
        if let Some(known) = &*value {
            return Ok(known.clone());
        }
        let new = make()?;
        *value = Some(new.clone());
        Ok(new)
    }

    /// This process's value, which can always be made. While one thread makes it, the others of
    /// this process wait.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> T {
        let Ok(own) = self.get_or_try_make(|| Ok::<T, Infallible>(make()));
        own
    }

    fn own(&self) -> Arc<Own<T>> {
        loop {
            let newest = self.newest.load_full();
            if let Some(own) = newest.as_ref().filter(|own| own.home.is_current()) {
                return Arc::clone(own);
            }
            let own = Arc::new(Own { home: HomeProcess::new(), value: Mutex::new(None) });
            let before = self.newest.compare_and_swap(&newest, Some(Arc::clone(&own)));
            let is_in = match (&*before, &newest) {
                (None, None) => true,
                (Some(before), Some(newest)) => Arc::ptr_eq(before, newest),
                _ => false,
            };
            if is_in {
                // An ancestor's value is leaked: dropping it would touch it.
                mem::forget(newest);
                return own;
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        mem::forget(self.newest.swap(None).filter(|own| !own.home.is_current()));
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_and_an_error_is_not_kept() {
        let value = PerProcess::new();
        assert_eq!(value.get_or_try_make(|| Err("refused")), Err("refused"));
        assert_eq!(value.get_or_try_make(|| Ok::<_, ()>(1)), Ok(1));
        assert_eq!(value.get_or_make(|| 2), 1);
    }

    #[test]
    fn a_value_of_another_process_is_not_touched() {
        let value = PerProcess::new();
        let home = HomeProcess::elsewhere();
        assert!(!home.is_current() && HomeProcess::new().is_current());
        let parents = Arc::new(Own { home, value: Mutex::new(Some(1)) });
        value.newest.store(Some(Arc::clone(&parents)));
        // The fork came while it was locked.
        let _locked = parents.value.lock();
        assert_eq!(value.get_or_make(|| 2), 2);
        assert_eq!(value.get_or_make(|| 3), 2);
    }
}
