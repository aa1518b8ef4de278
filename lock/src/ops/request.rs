//! Request ids: names of calls, under which the server remembers replies, so copies count once.
//!
//! A plain number has no owner by which the server could recognize a copy of a command. So each
//! call to change a number belongs to a *request sequence*: calls of a client, one after another,
//! with growing numbers. The server stores the last call's number and reply for each sequence under
//! a key. A copy of the last call gets the same reply. A copy of an earlier call does nothing,
//! because the call is over.
//!
//! So a client needs as many keys under a name as there are calls in progress, however many calls
//! the client makes. With a key for each call, a semaphore acquired 5,000 times a second would have
//! 720,000 keys, about 120 MB, as the server remembers a call for 72 s. Deleting the key of an
//! answered call with the next command would cost a write more in each script, and would let a late
//! copy count again. The reply cache of NFS 4.1 (RFC 8881, section 2.10.6) works in the same way.
//!
//! An undone call retains the sequence until the undo is acknowledged or dropped: the undo reads
//! there how many permits the call took. A refused acquire leaves no key, so a thousand waiting
//! threads have none.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::Argument;
use crate::ops::value::Value;

/// The request sequences of a client, each in use or free.
///
/// The bits are in atomic words and not behind a lock: a drop in the child of a fork must not wait
/// for a thread of the parent.
#[derive(Default)]
pub(crate) struct RequestSequences {
    /// A bit for each sequence, set while a call uses the sequence.
    in_use: [AtomicU64; WORDS],
}

/// The number of words in [`RequestSequences`], each with 64 sequences. A client with more calls in
/// progress gives each further call a key of its own.
const WORDS: usize = 16;

impl RequestSequences {
    /// Begins a call of `client` on `name`, in a free sequence if there is one. The server forgets
    /// the call after `dedup_ttl`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        client: &ClientId,
        name: &LockName,
        dedup_ttl: Duration,
    ) -> RequestId {
        let sequence = self.take();
        // After the sequence was taken, so numbers grow within a sequence.
        let owner = client.next_owner();
        let shown = sequence.unwrap_or_else(|| owner.number().saturating_add(LIMIT));
        let key = name.request(format_args!("{client}:{shown}"));
        let taken = sequence.map(|number| TakenSequence { all: Arc::clone(self), number });
        RequestId { key, owner, dedup_ttl: millis(dedup_ttl), _sequence: taken.map(Arc::new) }
    }

    /// Takes the lowest free sequence, so a client with few calls in progress uses few sequences.
    /// `None` if all sequences are in use.
    fn take(&self) -> Option<u64> {
        for (word, first) in self.in_use.iter().zip((0..).step_by(64)) {
            let mut in_use = word.load(Ordering::Relaxed);
            while in_use != u64::MAX {
                let lowest = in_use.trailing_ones();
                // Acquire: the previous call of the sequence drew a lower number.
                match word.compare_exchange_weak(
                    in_use,
                    in_use | (1 << lowest),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(first + u64::from(lowest)),
                    Err(changed) => in_use = changed,
                }
            }
        }
        None
    }

    /// Frees a sequence for the next call.
    fn give_back(&self, sequence: u64) {
        if let Some(word) = usize::try_from(sequence / 64).ok().and_then(|at| self.in_use.get(at)) {
            word.fetch_and(!(1 << (sequence % 64)), Ordering::Release);
        }
    }
}

/// The number of reusable sequences.
const LIMIT: u64 = 64 * WORDS as u64;

impl fmt::Debug for RequestSequences {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RequestSequences").finish_non_exhaustive()
    }
}

/// A sequence in use. Dropping the value leaves the sequence to the next call.
#[derive(Debug)]
struct TakenSequence {
    all: Arc<RequestSequences>,
    number: u64,
}

impl Drop for TakenSequence {
    fn drop(&mut self) {
        self.all.give_back(self.number);
    }
}

/// The identity of a call, over all attempts and until the rollback is done. The sequence is in use
/// until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct RequestId {
    /// The key of the sequence.
    key: Arc<str>,
    /// The owner's number is the call's number in the sequence.
    owner: Owner,
    dedup_ttl: i64,
    _sequence: Option<Arc<TakenSequence>>,
}

/// The server's memory of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// Nothing, or an earlier call.
    Nothing,
    /// The reply to an earlier copy of this call.
    Reply(i64),
    /// A later call: the request is a copy of a finished call.
    LaterCall,
}

impl RequestId {
    /// A call with a sequence and a number of the test's choice.
    #[cfg(test)]
    pub(crate) fn of(key: Arc<str>, owner: Owner, dedup_ttl: Duration) -> Self {
        Self { key, owner, dedup_ttl: millis(dedup_ttl), _sequence: None }
    }

    /// Returns the key of the call's sequence, under which the server remembers the reply.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns an owner that is unique to this call.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the number of the call in the sequence, as an argument.
    pub(crate) fn number(&self) -> Argument<'static> {
        Argument::Number(i64::try_from(self.owner.number()).unwrap_or(i64::MAX))
    }

    /// Returns how long the server remembers the call, as an argument in milliseconds. The next
    /// call of the sequence ends the memory before.
    pub(crate) fn dedup_ttl(&self) -> Argument<'static> {
        Argument::Number(self.dedup_ttl)
    }

    /// Reads the memory of the call's sequence in a keyspace.
    pub(crate) fn remembered(&self, keyspace: &mut Keyspace) -> Result<Remembered, WrongType> {
        let text = keyspace.text_get(&self.key)?.unwrap_or_default();
        let parsed = text.split_once(' ').and_then(|(last, reply)| {
            Some((last.parse::<u64>().ok()?, reply.parse::<i64>().ok()?))
        });
        let Some((last, reply)) = parsed else { return Ok(Remembered::Nothing) };
        Ok(match last.cmp(&self.owner.number()) {
            std::cmp::Ordering::Less => Remembered::Nothing,
            std::cmp::Ordering::Equal => Remembered::Reply(reply),
            std::cmp::Ordering::Greater => Remembered::LaterCall,
        })
    }

    /// Stores the reply to the call in a keyspace, in place of the sequence's earlier memory.
    pub(crate) fn remember(&self, keyspace: &mut Keyspace, reply: i64) {
        let text = format!("{} {reply}", self.owner.number());
        keyspace.text_set_for(&self.key, text, self.dedup_ttl);
    }

    /// Applies `change` in memory and remembers the reply. A copy changes nothing and gets the
    /// remembered reply, or a `LATE` reply after a later call.
    pub(crate) fn once(
        &self,
        keyspace: &mut Keyspace,
        change: impl FnOnce(&mut Keyspace) -> Result<i64, WrongType>,
    ) -> Result<Value, WrongType> {
        match self.remembered(keyspace)? {
            Remembered::LaterCall => Ok(Value::late(keyspace.now())),
            Remembered::Reply(reply) => Ok(Value::Integer(reply)),
            Remembered::Nothing => {
                let reply = change(keyspace)?;
                self.remember(keyspace, reply);
                Ok(Value::Integer(reply))
            }
        }
    }
}

/// Returns whole milliseconds of `duration`; saturates.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::*;

    fn begin(sequences: &Arc<RequestSequences>, client: &ClientId) -> RequestId {
        sequences.begin(client, &LockName::parse("a").unwrap(), Duration::from_secs(60))
    }

    #[test]
    fn sequential_calls_share_a_sequence_with_increasing_numbers() {
        let (sequences, client) = (Arc::default(), ClientId::random());
        let first = begin(&sequences, &client);
        let (key, number) = (first.key.clone(), first.owner.number());
        drop(first);
        let second = begin(&sequences, &client);
        assert_eq!(*second.key, format!("wheellock_request:{{a}}:{client}:0"));
        assert_eq!(second.key, key);
        assert!(second.owner.number() > number);
    }

    #[test]
    fn sequence_is_not_reused_until_its_last_clone_is_dropped() {
        let (sequences, client) = (Arc::default(), ClientId::random());
        let first = begin(&sequences, &client);
        let rolled_back = first.clone();
        let key = first.key.clone();
        drop(first);
        assert_ne!(begin(&sequences, &client).key, key);
        drop(rolled_back);
        assert_eq!(begin(&sequences, &client).key, key);
    }

    #[test]
    fn more_calls_than_sequences_have_keys_of_their_own() {
        let (sequences, client) = (Arc::default(), ClientId::random());
        let count = usize::try_from(LIMIT).unwrap() + 100;
        let calls: Vec<RequestId> = (0..count).map(|_| begin(&sequences, &client)).collect();
        let keys: HashSet<_> = calls.iter().map(|call| call.key.clone()).collect();
        assert_eq!(keys.len(), count);
        drop(calls);
        let again: Vec<RequestId> = (0..count).map(|_| begin(&sequences, &client)).collect();
        let fresh = again.iter().filter(|call| !keys.contains(&call.key)).count();
        assert_eq!(fresh, 100, "those beyond the limit");
    }

    #[test]
    fn threads_use_a_sequence_per_concurrent_call_and_numbers_grow() {
        let (sequences, client) = (Arc::default(), ClientId::random());
        let last = Mutex::new(std::collections::HashMap::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let call = begin(&sequences, &client);
                        let number = call.owner.number();
                        let before = last.lock().unwrap().insert(call.key.clone(), number);
                        assert!(before.is_none_or(|before| before < number), "{before:?}");
                    }
                });
            }
        });
        assert!(last.into_inner().unwrap().len() <= 8);
    }
}
