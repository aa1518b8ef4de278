//! What an operator asks the server: who holds a lock and who waits for it, which locks there are, who
//! waits for whom. And a request to the holders to release a lock.

pub(crate) mod ask;
pub(crate) mod graph;
pub(crate) mod locks;
pub(crate) mod status;
