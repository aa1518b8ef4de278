//! The locks and permits held by this process. No server is asked here.
//!
//! A hold is an owner's possession of a lock, shared by all its guards. The registry finds a hold
//! by name and holder; listeners are notified of the loss.

pub(crate) mod cache;
pub(crate) mod hold;
pub(crate) mod listener;
pub(crate) mod long_waits;
pub(crate) mod loss_signal;
pub(crate) mod named_acquires;
pub(crate) mod registry;
pub(crate) mod revocation;
pub(crate) mod state;
