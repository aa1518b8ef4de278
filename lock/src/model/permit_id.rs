//! A permit's id: sixteen bytes on the server, thirty-two hexadecimal digits everywhere else.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, truncated};
use crate::model::owner::Owner;

/// The unique id of one permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore).
///
/// Returned by [`Permit::id`](crate::Permit::id) and [`Permit::into_id`](crate::Permit::into_id),
/// or parsed from a text.
///
/// An id is never reused. The text of an id has 32 lower-case hexadecimal digits, like Redisson's
/// ids: with the text another program can release the permit.
///
/// ```
/// use wheellock::{Error, PermitId};
///
/// let id: PermitId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// assert!(matches!("no id".parse::<PermitId>(), Err(Error::InvalidPermitId { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// Returns the id of the permit acquired by this owner.
    pub(crate) fn of(owner: &Owner) -> Self {
        Self(owner.bytes())
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl FromStr for PermitId {
    type Err = Error;

    /// Parses 32 hexadecimal digits, of either case. Returns [`Error::InvalidPermitId`] for any
    /// other text.
    fn from_str(text: &str) -> Result<Self, Error> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let bytes: Option<Vec<u8>> = digits.map(|digits| {
            let (pairs, _) = digits.as_chunks::<2>();
            pairs.iter().map(|[high, low]| high << 4 | low).collect()
        });
        bytes
            .filter(|_| text.len() == 32)
            .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| Error::InvalidPermitId { id: truncated(text) })
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PermitId({self})")
    }
}
