//! Who holds a lock: a client's identity, and the number of one hold.
//!
//! Redisson's owner is `<client uuid>:<thread id>`, and Java never parses it. Ours is `<client uuid>:<number>`, and the
//! number is drawn anew for every outermost hold. So a command that arrives long after its connection was given up
//! (the kernel sends again, a stopped server goes on, a proxy delivers) names a hold that no longer is, and can do
//! nothing to the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// One client of one process. It hands out owners.
#[derive(Debug)]
pub(crate) struct ClientId {
    text: String,
    /// The half of the UUID of which most is random.
    half: [u8; 8],
    drawn: AtomicU64,
}

impl ClientId {
    pub(crate) fn random() -> Self {
        let uuid = Uuid::new_v4();
        let (_, half) = uuid.as_u64_pair();
        Self { text: uuid.to_string(), half: half.to_be_bytes(), drawn: AtomicU64::new(0) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// An owner that has never been and never will be again.
    pub(crate) fn draw(&self) -> Owner {
        Owner(Arc::from(format!("{}:{}", self.text, self.number())))
    }

    /// Sixteen bytes that have never been and never will be again: half of the identity, and a number.
    pub(crate) fn draw_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (half, number) = bytes.split_at_mut(8);
        half.copy_from_slice(&self.half);
        number.copy_from_slice(&self.number().to_be_bytes());
        bytes
    }

    fn number(&self) -> u64 {
        // Relaxed: the number only has to differ, and no other memory hangs on it.
        self.drawn.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The owner of one outermost hold, as it stands in the hash on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(Arc<str>);

impl Owner {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_the_clients_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        assert_eq!(client.as_str().len(), 36);
        assert_eq!(client.draw().as_str(), format!("{}:1", client.as_str()));
        assert_eq!(client.draw().as_str(), format!("{}:2", client.as_str()));
    }

    #[test]
    fn sixteen_bytes_are_half_of_the_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        let (first, second) = (client.draw_bytes(), client.draw_bytes());
        assert_eq!(first[..8], second[..8]);
        assert_eq!((first[15], second[15]), (1, 2));
        assert_ne!(first[..8], ClientId::random().draw_bytes()[..8]);
    }
}
