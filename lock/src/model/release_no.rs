//! Numbers that order the begins and the settlements of a client's releases.

/// A number drawn from a client's ledger: one when a release begins, which identifies the release,
/// and one when the release is settled. A smaller number was drawn earlier.
///
/// An acquire remembers as its mark the next number to be drawn: a release with a smaller number
/// began before the acquire was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReleaseNo(pub(crate) u64);
