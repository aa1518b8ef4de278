//! What this process knows of the locks and permits that it holds.
//!
//! A hold is what one owner has of one lock, shared by all its guards. The registry finds a hold by
//! name and holder; listeners are notified of its loss. No server is asked here.

pub(crate) mod cache;
pub(crate) mod hold;
pub(crate) mod listener;
pub(crate) mod long_waits;
pub(crate) mod loss_signal;
pub(crate) mod named_acquires;
pub(crate) mod registry;
pub(crate) mod revocation;
pub(crate) mod state;
