//! An operator's queries to the server: the holders and waiters of a lock, the list of locks, the
//! wait graph. Also requests to the holders to release a lock.

pub(crate) mod ask;
pub(crate) mod graph;
pub(crate) mod locks;
pub(crate) mod status;
