//! Object stores with conditional writes: S3, Google Cloud Storage, Azure Blob Storage, MinIO.
//!
//! The token is metadata of the object, so object and token change together. Each write is
//! conditional on the tag of the version that the writer has read: if two writers have read the
//! same version, the store refuses the second write, and the second writer reads the version again.
//!
//! **The tag must change with the token.** The generation of Google Cloud Storage and the `ETag` of
//! Azure are new with each write. The `ETag` of S3 is a digest of the content, without the
//! metadata: if a newer holder writes the same content again, the tag is unchanged, and an older
//! holder with the earlier version would overwrite the object. In S3 put the token into the content
//! too, as a field or as a last line. [`assert_contract`] detects a store with unchanged tags.
//!
//! This crate has no client of an object store: implement [`ConditionalStore`] for your client, and
//! check the implementation with [`assert_contract`].

use crate::error::{FenceError, Stale, checked};

/// The name of the metadata with the token, in decimal digits: `x-amz-meta-fencing-token` in S3.
pub const TOKEN_METADATA: &str = "fencing-token";

/// An object store which writes only if an object is absent, or has the version known to the
/// writer.
///
/// ```
/// use std::cell::RefCell;
/// use std::collections::HashMap;
/// use std::convert::Infallible;
///
/// use wheellock_fence::FenceError;
/// use wheellock_fence::object_store::{
///     Condition, ConditionalStore, Version, assert_contract, put,
/// };
///
/// /// A bucket in memory.
/// #[derive(Default)]
/// struct Bucket(RefCell<HashMap<String, (u64, Option<u64>, Vec<u8>)>>);
///
/// impl ConditionalStore for Bucket {
///     type Error = Infallible;
///
///     fn version(&self, key: &str) -> Result<Option<Version>, Infallible> {
///         let objects = self.0.borrow();
///         Ok(objects.get(key).map(|(tag, token, _)| Version::new(tag.to_string(), *token)))
///     }
///
///     fn put_if(
///         &self,
///         key: &str,
///         content: &[u8],
///         token: u64,
///         condition: Condition<'_>,
///     ) -> Result<bool, Infallible> {
///         let mut objects = self.0.borrow_mut();
///         let tag = objects.get(key).map(|(tag, ..)| tag.to_string());
///         if tag.as_deref() != condition.tag() {
///             return Ok(false);
///         }
///         let next = tag.map_or(0, |tag| tag.parse::<u64>().unwrap() + 1);
///         objects.insert(key.to_owned(), (next, Some(token), content.to_vec()));
///         Ok(true)
///     }
/// }
///
/// let bucket = Bucket::default();
/// assert_contract(&bucket, "contract/");
/// put(&bucket, "report.csv", 7, b"of the newer holder")?;
/// let refused = put(&bucket, "report.csv", 6, b"of the paused holder");
/// assert!(matches!(refused, Err(FenceError::Stale(_))));
/// # Ok::<(), FenceError<Infallible>>(())
/// ```
pub trait ConditionalStore {
    /// The error of the store's client.
    type Error;

    /// Returns the version of the object `key`, with the token in the object's metadata. `None` if
    /// there is no such object. In S3: `HeadObject`.
    ///
    /// # Errors
    ///
    /// The errors of the store's client. A missing object is no error.
    fn version(&self, key: &str) -> Result<Option<Version>, Self::Error>;

    /// Writes the object `key` with `token` as the metadata [`TOKEN_METADATA`], if `condition` is
    /// true when the store writes. Returns whether the object was written. The written object's tag
    /// must differ from the tags of writes with different tokens, even if the content is the same.
    ///
    /// In S3: `PutObject` with `If-None-Match: *` or `If-Match`, and the token in the content too.
    /// The replies 404, 409 and 412 are `Ok(false)`.
    ///
    /// # Errors
    ///
    /// The errors of the store's client. Without a reply, the object may have been written.
    fn put_if(
        &self,
        key: &str,
        content: &[u8],
        token: u64,
        condition: Condition<'_>,
    ) -> Result<bool, Self::Error>;
}

/// A version of an object: tag and token.
///
/// Created by [`new`](Self::new), and returned by [`ConditionalStore::version`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    tag: String,
    token: Option<u64>,
}

impl Version {
    /// Creates a version from the object's tag, such as an `ETag` or a generation, and the token in
    /// the object's metadata.
    #[must_use]
    pub fn new(tag: impl Into<String>, token: Option<u64>) -> Self {
        Self { tag: tag.into(), token }
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The token. `None` for an object written without a fence.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.token
    }
}

/// Condition for the write of an object.
///
/// The argument of [`ConditionalStore::put_if`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition<'a> {
    /// There is no object of this key.
    Absent,
    /// The object has this tag.
    Tag(&'a str),
}

impl<'a> Condition<'a> {
    /// The object's required tag. `None` if the object must be absent.
    #[must_use]
    pub fn tag(self) -> Option<&'a str> {
        match self {
            Self::Absent => None,
            Self::Tag(tag) => Some(tag),
        }
    }
}

/// Maximum number of attempts while concurrent writers change the object.
const ATTEMPTS: u32 = 16;

/// Writes the object `key` if `token` is not older than the object's token.
///
/// The call sends two requests, and two more each time a concurrent writer comes first.
///
/// The object must not be deleted or written without a fence, because the token would be lost.
/// Write an empty object instead of a deletion.
///
/// # Errors
///
/// * [`FenceError::Stale`] - a newer holder has written. Nothing was changed, unless the store's
///   client repeats requests: then the object may have been written before the newer holder wrote.
///   Permanent.
/// * [`FenceError::InvalidToken`] - nothing was sent. Permanent.
/// * [`FenceError::Contended`] - concurrent writers changed the object 16 times in a row.
///   Transient.
/// * [`FenceError::Resource`] - the error of the store. The object may have been written.
pub fn put<S: ConditionalStore + ?Sized>(
    store: &S,
    key: &str,
    token: u64,
    content: &[u8],
) -> Result<(), FenceError<S::Error>> {
    checked::<S::Error>(token)?;
    for _ in 0..ATTEMPTS {
        let version = store.version(key)?;
        if let Some(newest) = version.as_ref().and_then(Version::token)
            && token < newest
        {
            return Err(FenceError::Stale(Stale::new(key, token).with_newest(newest)));
        }
        let condition =
            version.as_ref().map_or(Condition::Absent, |version| Condition::Tag(version.tag()));
        if store.put_if(key, content, token, condition)? {
            return Ok(());
        }
    }
    Err(FenceError::Contended { resource: key.to_owned() })
}

/// Checks that `store` fulfills the contract of [`ConditionalStore`].
///
/// For the tests of an implementation. The check writes an object whose key begins with `prefix`.
/// The object must not exist before, and is not deleted afterwards.
///
/// # Panics
///
/// If the store breaks the contract or returns an error. The message describes the violation or
/// names the failed method.
pub fn assert_contract<S>(store: &S, prefix: &str)
where
    S: ConditionalStore + ?Sized,
    S::Error: std::fmt::Debug,
{
    let key = &format!("{prefix}wheellock-fence-contract");
    let version = || must("`version`", store.version(key));
    let put_if = |content: &[u8], token, condition| {
        must("`put_if`", store.put_if(key, content, token, condition))
    };
    assert_eq!(version(), None, "a missing object has no version: {key}");
    assert!(!put_if(b"0", 1, Condition::Tag("none")), "a missing object has no tag");
    assert_eq!(version(), None, "a refused write writes nothing");
    assert!(put_if(b"same", 1, Condition::Absent), "an absent object is written");
    let first = version();
    assert_eq!(first.as_ref().and_then(Version::token), Some(1), "the token is in the metadata");
    let first = first.map(|version| version.tag).unwrap_or_default();
    assert!(!put_if(b"2", 2, Condition::Absent), "an object that is there is not absent");
    assert!(put_if(b"same", 2, Condition::Tag(&first)), "an object with this tag is written");
    let second = version();
    assert_eq!(second.as_ref().and_then(Version::token), Some(2), "the token was replaced");
    assert_ne!(second.as_ref().map(Version::tag), Some(&*first), "the tag changes with the token");
    assert!(!put_if(b"3", 3, Condition::Tag(&first)), "an earlier tag is refused");
    assert_eq!(version(), second, "a refused write changes nothing");
}

#[expect(clippy::panic, reason = "the contract is checked by tests")]
fn must<T, E: std::fmt::Debug>(method: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{method} returned an error: {error:?}"))
}
