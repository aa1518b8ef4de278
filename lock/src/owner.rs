//! Who holds a lock: a client's identity, and the number of one hold.
//!
//! Redisson's owner is `<client uuid>:<thread id>`, and Java never parses it. Ours is `<client uuid>:<number>`, and the
//! number is drawn anew for every outermost hold. So a command that arrives long after its connection was given up
//! (the kernel sends again, a stopped server goes on, a proxy delivers) names a hold that no longer is, and can do
//! nothing to the next one.
//!
//! The UUID is random, but of version 8 where Java's is of version 4. So a line in which both stand can be read: who in
//! it says again and again that it lives, and who adds to the moments of those behind and takes that off again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use uuid::{Builder, Uuid};

/// One client of one process. It hands out owners.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: Uuid,
    drawn: AtomicU64,
}

impl ClientId {
    pub(crate) fn random() -> Self {
        let uuid = Builder::from_custom_bytes(Uuid::new_v4().into_bytes()).into_uuid();
        Self { uuid, drawn: AtomicU64::new(0) }
    }

    /// An owner that has never been and never will be again.
    pub(crate) fn draw(&self) -> Owner {
        Owner { client: self.uuid, number: self.number() }
    }

    fn number(&self) -> u64 {
        // Relaxed: the number only has to differ, and no other memory hangs on it.
        self.drawn.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uuid.hyphenated().fmt(formatter)
    }
}

/// The owner of one outermost hold. Its text is what stands in the hash on the server; it is written only when it is
/// sent or shown, as each of a hundred thousand holds would otherwise carry it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    client: Uuid,
    number: u64,
}

impl Owner {
    /// Half of the client's identity, and the number: as seldom met twice as the owner, and short.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        // The half of the UUID of which most is random.
        let (_, half) = self.client.as_u64_pair();
        let mut bytes = [0; 16];
        let (first, last) = bytes.split_at_mut(8);
        first.copy_from_slice(&half.to_be_bytes());
        last.copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// What its text is made of: the client's, a colon, and the number.
    pub(crate) fn parts(&self) -> ([u8; 36], u64) {
        let mut client = [0; 36];
        self.client.hyphenated().encode_lower(&mut client);
        (client, self.number)
    }

    /// Whether a text is an owner of this library's, and no thread of Redisson's: by the UUID's version.
    pub(crate) fn is_ours(text: &str) -> bool {
        text.as_bytes().get(14) == Some(&b'8')
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.client.hyphenated(), self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

/// Whose a hold is inside its client: who may nest it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Thread(ThreadId),
    /// Whoever says this name.
    Named(Arc<str>),
}

impl Holder {
    pub(crate) fn current_thread() -> Self {
        Self::Thread(thread::current().id())
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::Named(Arc::from(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_the_clients_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        assert_eq!(client.to_string().len(), 36);
        assert_eq!(client.draw().to_string(), format!("{client}:1"));
        assert_eq!(client.draw().to_string(), format!("{client}:2"));
    }

    #[test]
    fn an_owner_is_told_from_a_thread_of_redissons() {
        assert!(Owner::is_ours(&ClientId::random().draw().to_string()));
        assert!(!Owner::is_ours("7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42"));
        assert!(!Owner::is_ours("8"));
    }

    #[test]
    fn sixteen_bytes_are_half_of_the_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        let (first, second) = (client.draw().bytes(), client.draw().bytes());
        assert_eq!(first[..8], second[..8]);
        assert_eq!((first[15], second[15]), (1, 2));
        assert_ne!(first[..8], ClientId::random().draw().bytes()[..8]);
    }
}
