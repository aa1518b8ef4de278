//! Fencing: resources refuse stale holders of a lock.
//!
//! The holder of a lock with a lease can lose the lock unnoticed, when its process was paused, by
//! the operating system, a debugger or a garbage collector, for longer than the lease. No lock can
//! stop the write which the holder sends on waking. The resource can, given a *fencing token* with
//! each write: a number that grows from holder to holder. The resource remembers the newest token
//! seen, and refuses a write with an older token.
//!
//! This crate is the resource's half, for several kinds of resources. The token comes from any lock
//! with tokens, such as `wheellock` (`guard.draw_token()`), Redisson's `RFencedLock`, or the
//! revision of a key in etcd.
//!
//! | resource | module | cargo feature |
//! |---|---|---|
//! | PostgreSQL and SQLite, by any client | [`sql`]: statements as text | - |
//! | PostgreSQL, by the crate `postgres` | `postgres` | `postgres` |
//! | SQLite, by the crate `rusqlite` | `sqlite` | `sqlite` |
//! | Redis and Valkey, by the crate `redis` | `redis` | `redis` |
//! | files | `file` | `file` |
//! | object stores with conditional writes | `object_store` | `object-store` |
//! | services | [`HTTP_HEADER`] | - |
//!
//! All resources have the same rules:
//!
//! * A write with the newest token, or with a newer token, is done, and its token is the newest
//!   from then on. A holder may write any number of times with the same token.
//! * A write with an older token changes nothing, and is [`Stale`].
//! * The data and the token change together. A write that fails, or whose process is killed, leaves
//!   both unchanged: a token that was not committed refuses nobody.
//!
//! The counter of tokens must outlive the resource. If the counter begins again, as the counter of
//! locks in memory does with each process, a resource that stays refuses everybody until the tokens
//! are as large as before.
//!
//! A token protects only data checked by the resource. A sent mail, or a request to a service that
//! ignores the token, is not taken back.
//!
//! The idea is Martin Kleppmann's (How to do distributed locking, 2016), and before him Chubby's,
//! whose sequencers servers check (Burrows, 2006).
//!
//! ```
//! # #[cfg(feature = "file")] {
//! use std::time::Duration;
//! use wheellock_fence::{FenceError, file};
//!
//! # let folder = std::env::temp_dir().join(format!("wheellock-fence-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! let path = folder.join("report.csv");
//! let patience = Duration::from_secs(5);
//! file::replace(&path, 7, b"of the newer holder", patience).unwrap();
//! let refused = file::replace(&path, 6, b"of the paused holder", patience);
//! assert!(matches!(refused, Err(FenceError::Stale(_))));
//! assert_eq!(std::fs::read(&path).unwrap(), b"of the newer holder");
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "object-store")]
pub mod object_store;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use crate::error::{FenceError, Stale};

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// The name of the HTTP header for the fencing token of a request, in decimal digits. In lower
/// case, as HTTP/2 sends names; the case makes no difference to a server.
///
/// A service that gets the header raises the token in the transaction of the request, as in
/// [`sql::RAISE`]. The service answers `412 Precondition Failed` if the token is stale, and `400
/// Bad Request` if there is none. The example `fencing_service` of this repository is such a
/// service.
///
/// ```
/// let request = format!("PUT /orders/42 HTTP/1.1\r\n{}: {}\r\n", wheellock_fence::HTTP_HEADER, 7);
/// assert!(request.ends_with("fencing-token: 7\r\n"));
/// ```
pub const HTTP_HEADER: &str = "fencing-token";
