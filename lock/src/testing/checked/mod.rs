//! For tests only. The locks as models that a machine searches: every order of events within
//! limits, with the library's own rules for the clients and its own operations as the server
//! (DESIGN: checked model).

pub(crate) mod checked_lock;
pub(crate) mod clients;
pub(crate) mod history;
pub(crate) mod majority;
pub(crate) mod mutation;
pub(crate) mod mutations;
pub(crate) mod one_lock;
pub(crate) mod permits;
pub(crate) mod properties;
pub(crate) mod search;
pub(crate) mod searches;
pub(crate) mod server;
pub(crate) mod serving;
pub(crate) mod state;
