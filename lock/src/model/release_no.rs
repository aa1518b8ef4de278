//! The number of a release.

/// The order in which the releases of a client begin and settle. An acquire remembers the number of
/// the next release as its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReleaseNo(pub(crate) u64);
