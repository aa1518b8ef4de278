//! The owner of a hold: a client's identity and the number of one hold.
//!
//! Redisson's owner is `<client uuid>:<thread id>`, and Java never parses it. Ours is `<client
//! uuid>:<number>`, with a new number for every outermost hold. So a command that arrives long
//! after its connection was given up (the kernel sends it again, a stopped server resumes, a proxy
//! delivers it) names a hold that no longer exists, and cannot affect the next one.
//!
//! The UUID is random, but of version 8 where Java's is of version 4. So in a queue with waiters of
//! both, ours, which renew their liveness deadline, can be told from Redisson's, which do not.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use uuid::{Builder, Uuid};

use crate::error::Error;

/// One client of one process. It makes owners.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: Uuid,
    drawn: AtomicU64,
}

impl ClientId {
    /// A new identity. The bytes are the operating system's: a generator inside this process would
    /// give the same ones to a child of a fork, and two clients with one identity would hold each
    /// other's locks.
    pub(crate) fn new() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::Random { reason: io::Error::from(error).into() })?;
        let uuid = Builder::from_custom_bytes(bytes).into_uuid();
        Ok(Self { uuid, drawn: AtomicU64::new(0) })
    }

    #[cfg(test)]
    pub(crate) fn random() -> Self {
        Self::new().unwrap()
    }

    /// An owner that was never used before.
    pub(crate) fn next_owner(&self) -> Owner {
        Owner { client: self.uuid, number: self.number() }
    }

    fn number(&self) -> u64 {
        // Relaxed: the number only has to differ. No other memory depends on it.
        self.drawn.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uuid.hyphenated().fmt(formatter)
    }
}

/// The owner of one outermost hold. Its text is the field of the hash on the server. The text is
/// made only when it is sent or shown, so that a hundred thousand holds need not store it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    client: Uuid,
    number: u64,
}

impl Owner {
    /// Half of the client's identity, and the number: as unlikely to repeat as the owner, and
    /// shorter.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        // The half of the UUID with the most random bits.
        let (_, half) = self.client.as_u64_pair();
        let mut bytes = [0; 16];
        let (first, last) = bytes.split_at_mut(8);
        first.copy_from_slice(&half.to_be_bytes());
        last.copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Larger than that of every owner which the client drew before.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The parts of its text: the client's, a colon, and the number.
    pub(crate) fn parts(&self) -> ([u8; 36], u64) {
        let mut client = [0; 36];
        self.client.hyphenated().encode_lower(&mut client);
        (client, self.number)
    }

    /// Whether a text is an owner of this library and not a thread of Redisson's, by the UUID's
    /// version.
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

/// The holder within its client, which may nest the hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LocalHolder {
    Thread(ThreadId),
    /// Any thread that gives this name.
    Named(Arc<str>),
}

impl LocalHolder {
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
        assert_eq!(client.next_owner().to_string(), format!("{client}:1"));
        assert_eq!(client.next_owner().to_string(), format!("{client}:2"));
    }

    #[test]
    fn an_owner_is_told_from_a_thread_of_redissons() {
        assert!(Owner::is_ours(&ClientId::random().next_owner().to_string()));
        assert!(!Owner::is_ours("7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42"));
        assert!(!Owner::is_ours("8"));
    }

    #[test]
    fn sixteen_bytes_are_half_of_the_uuid_and_a_number_never_used_again() {
        let client = ClientId::random();
        let (first, second) = (client.next_owner().bytes(), client.next_owner().bytes());
        assert_eq!(first[..8], second[..8]);
        assert_eq!((first[15], second[15]), (1, 2));
        assert_ne!(first[..8], ClientId::random().next_owner().bytes()[..8]);
    }
}
