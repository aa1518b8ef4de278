//! Resources that refuse stale holders of a lock.
//!
//! The holder of a lock with a lease can lose the lock unnoticed: the operating system, a debugger
//! or a garbage collector pauses the process for longer than the lease. No lock can stop the write
//! that the holder sends after the pause. The resource can, if each write carries a *fencing
//! token*: a number that grows from holder to holder. The resource stores the newest token so far,
//! and refuses a write with an older token.
//!
//! This crate is the resource's half, for several kinds of resources. The token comes from any lock
//! with such numbers, for example `wheellock` (`guard.draw_token()`), Redisson's `RFencedLock`, or
//! the revision of a key in etcd.
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
//! * A write with the newest token or a newer token succeeds, and makes this token the newest. A
//!   holder may write any number of times with the same token.
//! * A write with an older token changes nothing, and is [`Stale`].
//! * The data and the token change together. A write that fails, or whose process is killed,
//!   changes neither: an uncommitted token refuses no write.
//!
//! The counter of tokens must outlive the resource. If the counter restarts, as the counter of
//! locks in memory does with each process, a persistent resource refuses all writes until the
//! tokens are as large as before.
//!
//! A token protects only writes that a resource checks. A sent mail, or a request to a service
//! which ignores the token, cannot be undone.
//!
//! The idea is from Martin Kleppmann (How to do distributed locking, 2016), and earlier from
//! Chubby, where servers check sequencers (Burrows, 2006).
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

/// The name of the header for the fencing token of a request, in decimal digits. The name is in
/// lower case, as HTTP/2 requires; servers ignore the case.
///
/// On such a request, a service raises the token in the request's transaction, as in
/// [`sql::RAISE`]. The service answers `412 Precondition Failed` if the token is stale, and `400
/// Bad Request` if the header is missing. The example `fencing_service` of this repository is such
/// a service.
///
/// ```
/// let request = format!("PUT /orders/42 HTTP/1.1\r\n{}: {}\r\n", wheellock_fence::HTTP_HEADER, 7);
/// assert!(request.ends_with("fencing-token: 7\r\n"));
/// ```
pub const HTTP_HEADER: &str = "fencing-token";
