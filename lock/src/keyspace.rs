//! A keyspace in memory: what the operations need of Redis's data types, with time as an argument.
//!
//! It knows nothing of locks. Each operation says in its own file what it does here, beside the script that does the
//! same on a server, and one suite holds both to the same replies.

use std::collections::{BTreeMap, HashMap};

use crate::value::{ServerTime, Value};

/// Keys with their values and expiries, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    now: i64,
    keys: HashMap<String, Entry>,
    published: Vec<Publication>,
}

/// A message that an operation published: delivered by whoever ran it, after the keyspace is unlocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publication {
    pub(crate) channel: String,
    pub(crate) payload: String,
}

#[derive(Debug)]
struct Entry {
    content: Content,
    expires_at: Option<i64>,
}

#[derive(Debug)]
enum Content {
    Hash(BTreeMap<String, String>),
    Text,
}

/// The key holds a value of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongType;

impl Keyspace {
    /// Sets the time. What expired by then is gone for every method below.
    pub(crate) fn set_now(&mut self, now: ServerTime) {
        self.now = now.0;
    }

    pub(crate) fn now(&self) -> ServerTime {
        ServerTime(self.now)
    }

    /// The answer to a command that came after its not-after; `None` if it came in time.
    pub(crate) fn late(&self, not_after: ServerTime) -> Option<Value> {
        (self.now() > not_after).then(|| Value::late(self.now()))
    }

    pub(crate) fn exists(&mut self, key: &str) -> bool {
        self.live(key).is_some()
    }

    pub(crate) fn hash_has(&mut self, key: &str, field: &str) -> Result<bool, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(false),
            Some(Content::Hash(fields)) => Ok(fields.contains_key(field)),
            Some(Content::Text) => Err(WrongType),
        }
    }

    pub(crate) fn hash_set(&mut self, key: &str, field: &str, value: u64) -> Result<(), WrongType> {
        self.expire_if_due(key);
        let entry = self
            .keys
            .entry(key.to_owned())
            .or_insert_with(|| Entry { content: Content::Hash(BTreeMap::new()), expires_at: None });
        match &mut entry.content {
            Content::Hash(fields) => {
                fields.insert(field.to_owned(), value.to_string());
                Ok(())
            }
            Content::Text => Err(WrongType),
        }
    }

    /// Stores a text, whatever was there. It has no reader: it stands for a key that is not a lock.
    pub(crate) fn text_set(&mut self, key: &str) {
        let entry = Entry { content: Content::Text, expires_at: None };
        self.keys.insert(key.to_owned(), entry);
    }

    /// The time to live as Redis gives it: -2 without the key, -1 without an expiry, else milliseconds.
    pub(crate) fn time_to_live(&mut self, key: &str) -> i64 {
        let now = self.now;
        self.live(key).map_or(-2, |entry| entry.expires_at.map_or(-1, |at| (at - now).max(0)))
    }

    /// Gives a key `millis` to live, unless it has longer. With zero, it stays as it is.
    pub(crate) fn prolong(&mut self, key: &str, millis: i64) {
        let longest = self.time_to_live(key).max(millis);
        let at = self.now.saturating_add(longest);
        if let Some(entry) = self.live(key).filter(|_| longest > 0) {
            entry.expires_at = Some(at);
        }
    }

    #[cfg(test)]
    pub(crate) fn persist(&mut self, key: &str) {
        if let Some(entry) = self.live(key) {
            entry.expires_at = None;
        }
    }

    pub(crate) fn delete(&mut self, key: &str) -> bool {
        self.expire_if_due(key);
        self.keys.remove(key).is_some()
    }

    pub(crate) fn publish(&mut self, channel: &str, payload: &str) {
        let publication = Publication { channel: channel.to_owned(), payload: payload.to_owned() };
        self.published.push(publication);
    }

    pub(crate) fn take_published(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.published)
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    /// The fields of a hash, in order; empty if there is none.
    pub(crate) fn fields(&mut self, key: &str) -> Vec<(String, String)> {
        match self.live(key).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => {
                fields.iter().map(|(field, value)| (field.clone(), value.clone())).collect()
            }
            Some(Content::Text) | None => Vec::new(),
        }
    }

    fn live(&mut self, key: &str) -> Option<&mut Entry> {
        self.expire_if_due(key);
        self.keys.get_mut(key)
    }

    fn expire_if_due(&mut self, key: &str) {
        let due = self
            .keys
            .get(key)
            .and_then(|entry| entry.expires_at)
            .is_some_and(|expires_at| expires_at <= self.now);
        if due {
            self.keys.remove(key);
        }
    }
}
