//! A lock's name, and the names that follow from it.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, shortened};

/// A name that can be a lock's. It is the key on the server, byte for byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct LockName(Arc<str>);

/// Longer names are a mistake more often than a wish, and every wait would send them again and again.
const LONGEST: usize = 64 * 1024;

impl LockName {
    pub(crate) fn parse(name: &str) -> Result<Self, Error> {
        let reason = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > LONGEST {
            format!("it is longer than {LONGEST} bytes")
        } else {
            return Ok(Self(Arc::from(name)));
        };
        Err(Error::InvalidName { name: shortened(name), reason })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name for messages: a long one is cut short.
    pub(crate) fn shown(&self) -> String {
        shortened(&self.0)
    }

    /// The channel on which the lock's releases are published, as Redisson names it. Made anew each time: a hundred
    /// thousand holds need theirs only when they end.
    pub(crate) fn channel(&self) -> Arc<str> {
        Arc::from(prefixed("redisson_lock__channel", &self.0))
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown(), formatter)
    }
}

/// Redisson's `prefixName`: a name without braces is put in braces, so that in a cluster all keys of one lock share
/// a slot. It only asks whether there is a `{`, not whether the tag is well formed, and so do we.
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_carries_the_hash_tag_as_redisson_writes_it() {
        let channel = |name: &str| LockName::parse(name).unwrap().channel().to_string();
        assert_eq!(channel("a"), "redisson_lock__channel:{a}");
        assert_eq!(channel("a{b}"), "redisson_lock__channel:a{b}");
        assert_eq!(channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
    }

    #[test]
    fn a_long_name_is_cut_short_in_messages() {
        let error = LockName::parse(&"x".repeat(LONGEST + 1)).unwrap_err();
        assert!(error.to_string().len() < 300, "{error}");
    }
}
