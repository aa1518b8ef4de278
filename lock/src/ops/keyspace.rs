//! A keyspace in memory: the subset of Redis's data types needed by the operations, with time as an
//! argument.
//!
//! The keyspace knows nothing of locks. Each operation defines the effect on a keyspace beside the
//! script with the same effect on a server. A test suite holds both to the same replies.

use std::collections::{BTreeMap, VecDeque};

use uuid::Uuid;

use crate::ops::value::ServerTime;

/// Keys with values and expiries in memory, at a given time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Keyspace {
    now: i64,
    keys: BTreeMap<String, KeyspaceEntry>,
    published: Vec<Publication>,
}

/// A message published by an operation. The caller delivers the message after the keyspace is
/// unlocked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Publication {
    pub(crate) channel: String,
    pub(crate) payload: String,
}

/// The value and the expiry of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KeyspaceEntry {
    content: Content,
    /// The time at which the key expires, in ms of the server's clock; `None` for never.
    expires_at: Option<i64>,
}

/// A value of a Redis type, as far as locks need the types. An empty collection is removed with the
/// key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Content {
    Hash(BTreeMap<String, String>),
    Text(String),
    List(VecDeque<String>),
    /// Members with scores, which are whole numbers here.
    Sorted(BTreeMap<Vec<u8>, i64>),
}

impl Content {
    /// Returns whether a collection has no elements. A text is never empty.
    fn is_empty(&self) -> bool {
        match self {
            Self::Hash(fields) => fields.is_empty(),
            Self::Text(_) => false,
            Self::List(items) => items.is_empty(),
            Self::Sorted(members) => members.is_empty(),
        }
    }
}

/// Returns whether a text has digits only, and at least one.
fn is_count(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a text begins with an owner: a UUID, a colon and a number.
pub(crate) fn begins_with_owner(text: &str) -> bool {
    let (Some(uuid), Some([b':', digit, ..])) = (text.get(..36), text.as_bytes().get(36..)) else {
        return false;
    };
    digit.is_ascii_digit() && Uuid::try_parse(uuid).is_ok()
}

/// The error for this key, which has a value of another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongType(pub(crate) String);

impl WrongType {
    pub(crate) fn of(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl Keyspace {
    /// Sets the time. A key expired by then is gone for the methods below.
    pub(crate) fn set_now(&mut self, now: ServerTime) {
        self.now = now.0;
    }

    pub(crate) fn now(&self) -> ServerTime {
        ServerTime(self.now)
    }

    /// `EXISTS`.
    pub(crate) fn exists(&mut self, key: &str) -> bool {
        self.live(key).is_some()
    }

    /// `TYPE`: the word for the type of the key's value, `none` without the key.
    pub(crate) fn kind(&mut self, key: &str) -> &'static str {
        match self.live(key).map(|entry| &entry.content) {
            None => "none",
            Some(Content::Hash(_)) => "hash",
            Some(Content::Text(_)) => "string",
            Some(Content::List(_)) => "list",
            Some(Content::Sorted(_)) => "zset",
        }
    }

    /// `HEXISTS`.
    pub(crate) fn hash_has(&mut self, key: &str, field: &str) -> Result<bool, WrongType> {
        Ok(self.hash_get(key, field)?.is_some())
    }

    /// `HRANDFIELD`: any field, here the first.
    pub(crate) fn hash_field(&mut self, key: &str) -> Option<String> {
        match self.live(key).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => fields.keys().next().cloned(),
            _ => None,
        }
    }

    /// `HGET`: `None` without the key or the field.
    pub(crate) fn hash_get(&mut self, key: &str, field: &str) -> Result<Option<String>, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Hash(fields)) => Ok(fields.get(field).cloned()),
            Some(_) => Err(WrongType::of(key)),
        }
    }

    /// `HSET`.
    #[expect(clippy::needless_pass_by_value, reason = "a number or a text, as it comes")]
    pub(crate) fn hash_set(
        &mut self,
        key: &str,
        field: &str,
        value: impl ToString,
    ) -> Result<(), WrongType> {
        match self.content(key, || Content::Hash(BTreeMap::new())) {
            Content::Hash(fields) => {
                fields.insert(field.to_owned(), value.to_string());
                Ok(())
            }
            _ => Err(WrongType::of(key)),
        }
    }

    /// `HDEL`: whether the hash had the field.
    pub(crate) fn hash_delete(&mut self, key: &str, field: &str) -> Result<bool, WrongType> {
        self.change(key, |content| match content {
            Content::Hash(fields) => Ok(fields.remove(field).is_some()),
            _ => Err(WrongType::of(key)),
        })
    }

    /// `HGETALL`: the fields and values of a hash, in order; empty without a hash.
    pub(crate) fn fields(&mut self, key: &str) -> Vec<(String, String)> {
        match self.live(key).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => {
                fields.iter().map(|(field, value)| (field.clone(), value.clone())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether a hash has a field that no lock has. The scripts of acquires inspect only a
    /// few fields.
    pub(crate) fn is_foreign(&mut self, key: &str) -> bool {
        let has_end = self.time_to_live(key) >= 0;
        self.fields(key).iter().any(|(field, value)| match field.as_str() {
            "mode" => value != "read" && value != "write",
            _ => !is_count(value) || !has_end && !begins_with_owner(field),
        })
    }

    /// `GET`: `None` without the key.
    pub(crate) fn text_get(&mut self, key: &str) -> Result<Option<String>, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WrongType::of(key)),
        }
    }

    /// `SET`, whatever the key held before, and without an expiry.
    #[expect(clippy::needless_pass_by_value, reason = "a number or a text, as it comes")]
    pub(crate) fn text_set(&mut self, key: &str, text: impl ToString) {
        let entry = KeyspaceEntry { content: Content::Text(text.to_string()), expires_at: None };
        self.keys.insert(key.to_owned(), entry);
    }

    /// `SET` with `PX`, whatever the key held before.
    pub(crate) fn text_set_for(&mut self, key: &str, text: impl ToString, millis: i64) {
        self.text_set(key, text);
        self.expire(key, millis);
    }

    /// `GET` of a number: `None` without the key. Any other text is an error.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<i64>, WrongType> {
        self.text_get(key)?.map(|text| text.parse().map_err(|_| WrongType::of(key))).transpose()
    }

    /// `INCRBY`: returns the sum. A missing key counts as zero, and a text must be a number. The
    /// expiry stays.
    pub(crate) fn number_add(&mut self, key: &str, delta: i64) -> Result<i64, WrongType> {
        match self.content(key, || Content::Text("0".to_owned())) {
            Content::Text(text) => {
                let sum =
                    text.parse::<i64>().map_err(|_| WrongType::of(key))?.saturating_add(delta);
                *text = sum.to_string();
                Ok(sum)
            }
            _ => Err(WrongType::of(key)),
        }
    }

    /// `RPUSH`.
    pub(crate) fn list_push(&mut self, key: &str, item: &str) -> Result<(), WrongType> {
        match self.content(key, || Content::List(VecDeque::new())) {
            Content::List(items) => {
                items.push_back(item.to_owned());
                Ok(())
            }
            _ => Err(WrongType::of(key)),
        }
    }

    /// `LRANGE` of all items, first to last; empty without the key.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<String>, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(Vec::new()),
            Some(Content::List(items)) => Ok(items.iter().cloned().collect()),
            Some(_) => Err(WrongType::of(key)),
        }
    }

    /// `LREM` of all items equal to `item`: whether there was such an item.
    pub(crate) fn list_remove(&mut self, key: &str, item: &str) -> Result<bool, WrongType> {
        self.change(key, |content| match content {
            Content::List(items) => {
                let before = items.len();
                items.retain(|other| other != item);
                Ok(items.len() < before)
            }
            _ => Err(WrongType::of(key)),
        })
    }

    /// `ZSCORE`: the score of a member of a sorted set; `None` without the key or the member.
    pub(crate) fn sorted_set_score(
        &mut self,
        key: &str,
        member: &[u8],
    ) -> Result<Option<i64>, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Sorted(members)) => Ok(members.get(member).copied()),
            Some(_) => Err(WrongType::of(key)),
        }
    }

    /// `ZADD`.
    pub(crate) fn sorted_set(
        &mut self,
        key: &str,
        member: &[u8],
        score: i64,
    ) -> Result<(), WrongType> {
        match self.content(key, || Content::Sorted(BTreeMap::new())) {
            Content::Sorted(members) => {
                members.insert(member.to_vec(), score);
                Ok(())
            }
            _ => Err(WrongType::of(key)),
        }
    }

    /// `ZREM`: whether the sorted set had the member.
    pub(crate) fn sorted_remove(&mut self, key: &str, member: &[u8]) -> Result<bool, WrongType> {
        self.change(key, |content| match content {
            Content::Sorted(members) => Ok(members.remove(member).is_some()),
            _ => Err(WrongType::of(key)),
        })
    }

    /// `ZREMRANGEBYSCORE` of all scores up to `highest`. Returns the number of removed members.
    pub(crate) fn sorted_remove_until(
        &mut self,
        key: &str,
        highest: i64,
    ) -> Result<i64, WrongType> {
        let mut removed = 0;
        self.change(key, |content| match content {
            Content::Sorted(members) => {
                members.retain(|_, score| {
                    let stays = *score > highest;
                    removed += i64::from(!stays);
                    stays
                });
                Ok(removed > 0)
            }
            _ => Err(WrongType::of(key)),
        })?;
        Ok(removed)
    }

    /// `ZREMRANGEBYRANK` of all members but `kept` members with the highest scores.
    pub(crate) fn sorted_keep_highest(&mut self, key: &str, kept: usize) -> Result<(), WrongType> {
        let all = self.sorted(key)?;
        let excess = all.len().saturating_sub(kept);
        for (member, _) in all.into_iter().take(excess) {
            self.sorted_remove(key, &member)?;
        }
        Ok(())
    }

    /// Returns all members with their scores, as `ZRANGE key 0 -1 WITHSCORES` does: by ascending
    /// score, and members of equal score in the order of their bytes. The list is empty if there is
    /// no key.
    pub(crate) fn sorted(&mut self, key: &str) -> Result<Vec<(Vec<u8>, i64)>, WrongType> {
        match self.live(key).map(|entry| &entry.content) {
            None => Ok(Vec::new()),
            Some(Content::Sorted(members)) => {
                let mut all: Vec<(Vec<u8>, i64)> =
                    members.iter().map(|(member, score)| (member.clone(), *score)).collect();
                all.sort_by_key(|(_, score)| *score);
                Ok(all)
            }
            Some(_) => Err(WrongType::of(key)),
        }
    }

    /// `PTTL`: -2 without the key, -1 without an expiry, else milliseconds.
    pub(crate) fn time_to_live(&mut self, key: &str) -> i64 {
        let now = self.now;
        self.live(key).map_or(-2, |entry| entry.expires_at.map_or(-1, |at| (at - now).max(0)))
    }

    /// `PEXPIRE`: sets the time to live to `millis`. With zero or less, the key is removed.
    pub(crate) fn expire(&mut self, key: &str, millis: i64) {
        let at = self.now.saturating_add(millis);
        if let Some(entry) = self.live(key) {
            entry.expires_at = Some(at);
        }
    }

    /// Extends a shorter time to live to `millis`. Zero changes nothing.
    pub(crate) fn prolong(&mut self, key: &str, millis: i64) {
        let longest = self.time_to_live(key).max(millis);
        let at = self.now.saturating_add(longest);
        if let Some(entry) = self.live(key).filter(|_| longest > 0) {
            entry.expires_at = Some(at);
        }
    }

    /// `PERSIST`: removes the expiry.
    pub(crate) fn persist(&mut self, key: &str) {
        if let Some(entry) = self.live(key) {
            entry.expires_at = None;
        }
    }

    /// `DEL`: whether there was the key.
    pub(crate) fn delete(&mut self, key: &str) -> bool {
        self.expire_if_due(key);
        self.keys.remove(key).is_some()
    }

    /// `PUBLISH`: records a message for [`take_published`](Self::take_published).
    pub(crate) fn publish(&mut self, channel: &str, payload: &str) {
        let publication = Publication { channel: channel.to_owned(), payload: payload.to_owned() };
        self.published.push(publication);
    }

    /// Takes the messages published since the last call, for the caller to deliver.
    pub(crate) fn take_published(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.published)
    }

    /// `FLUSHDB`: removes all keys. Published messages stay.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    /// `MIGRATE`: moves a key with the remaining time to live, unless `to` has the key.
    #[cfg(all(test, wheellock_shuttle))]
    pub(crate) fn migrate(&mut self, key: &str, to: &mut Self) {
        self.expire_if_due(key);
        to.expire_if_due(key);
        let Some(KeyspaceEntry { content, expires_at }) = self.keys.remove(key) else { return };
        let expires_at = expires_at.map(|at| at - self.now + to.now);
        to.keys.entry(key.to_owned()).or_insert(KeyspaceEntry { content, expires_at });
    }

    /// The keys at the time `now`, without the keys expired by then: equal to any keyspace with the
    /// same future.
    #[cfg(test)]
    pub(crate) fn at(&self, now: ServerTime) -> Self {
        let lives =
            |entry: &KeyspaceEntry| entry.expires_at.is_none_or(|expires_at| expires_at > now.0);
        let keys = self.keys.iter().filter(|(_, entry)| lives(entry));
        let keys = keys.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        Self { now: now.0, keys, published: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A copy with renamed keys, fields and members.
    #[cfg(test)]
    pub(crate) fn renamed(&self, rename: impl Fn(&str) -> String) -> Self {
        let renamed = |content: &Content| match content {
            Content::Hash(fields) => Content::Hash(
                fields.iter().map(|(field, value)| (rename(field), value.clone())).collect(),
            ),
            Content::Text(text) => Content::Text(rename(text)),
            Content::List(items) => Content::List(items.iter().map(|item| rename(item)).collect()),
            Content::Sorted(members) => {
                let name = |member: &[u8]| rename(&String::from_utf8_lossy(member)).into_bytes();
                let members = members.iter().map(|(member, score)| (name(member), *score));
                Content::Sorted(members.collect())
            }
        };
        let keys = self.keys.iter().map(|(key, KeyspaceEntry { content, expires_at })| {
            (rename(key), KeyspaceEntry { content: renamed(content), expires_at: *expires_at })
        });
        Self { now: self.now, keys: keys.collect(), published: Vec::new() }
    }

    /// `KEYS`: the keys matching a pattern, in any order.
    pub(crate) fn keys_like(&mut self, pattern: &str) -> Vec<String> {
        let pattern: Vec<char> = pattern.chars().collect();
        let mut found: Vec<String> = self.keys.keys().cloned().collect();
        found.retain(|key| self.exists(key) && is_like(&key.chars().collect::<Vec<_>>(), &pattern));
        found
    }

    /// Returns the value of a key, after the value was created by `make` if the key is missing.
    fn content(&mut self, key: &str, make: impl FnOnce() -> Content) -> &mut Content {
        self.expire_if_due(key);
        let entry = self.keys.entry(key.to_owned());
        &mut entry.or_insert_with(|| KeyspaceEntry { content: make(), expires_at: None }).content
    }

    /// Calls `take` to remove something from the value of a key, and removes a key whose collection
    /// is empty then. Returns the result of `take`; `false` without the key.
    fn change(
        &mut self,
        key: &str,
        take: impl FnOnce(&mut Content) -> Result<bool, WrongType>,
    ) -> Result<bool, WrongType> {
        let Some(entry) = self.live(key) else {
            return Ok(false);
        };
        let taken = take(&mut entry.content)?;
        if entry.content.is_empty() {
            self.keys.remove(key);
        }
        Ok(taken)
    }

    /// Returns the entry of a key that has not expired. Removes an expired key.
    fn live(&mut self, key: &str) -> Option<&mut KeyspaceEntry> {
        self.expire_if_due(key);
        self.keys.get_mut(key)
    }

    /// Removes a key that has expired.
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

/// Returns whether a text matches a pattern of Redis's: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\`
/// before a literal character.
///
/// Takes at most as many steps as the product of both lengths. Only the last `*` is ever extended:
/// a longer match of an earlier `*` leaves less text for the same rest of the pattern.
fn is_like(mut text: &[char], mut pattern: &[char]) -> bool {
    // The pattern after the last `*`, and the text not yet taken by this `*`.
    let mut star: Option<(&[char], &[char])> = None;
    loop {
        if let Some(('*', rest)) = pattern.split_first() {
            pattern = rest;
            star = Some((rest, text));
            continue;
        }
        let Some((letter, later)) = text.split_first() else { return pattern.is_empty() };
        if let Some(rest) = match_letter(*letter, pattern) {
            (text, pattern) = (later, rest);
            continue;
        }
        // The last `*` takes one letter more, and the rest is compared again.
        let Some((rest, untaken)) = star else { return false };
        text = untaken.get(1..).unwrap_or_default();
        pattern = rest;
        star = Some((rest, text));
    }
}

/// Matches a letter with the beginning of a pattern, which is not `*`. Returns the rest of the
/// pattern; `None` if the letter does not match, or the pattern is empty.
fn match_letter(letter: char, pattern: &[char]) -> Option<&[char]> {
    let (first, rest) = pattern.split_first()?;
    match first {
        '?' => Some(rest),
        '[' => {
            let end = rest.iter().position(|sign| *sign == ']').unwrap_or(rest.len());
            let (set, negated) = match rest[..end].split_first() {
                Some(('^', set)) => (set, true),
                _ => (&rest[..end], false),
            };
            let is_in = set.contains(&letter)
                || set
                    .windows(3)
                    .any(|range| range[1] == '-' && (range[0]..=range[2]).contains(&letter));
            (is_in != negated).then(|| rest.get(end + 1..).unwrap_or_default())
        }
        '\\' => rest.split_first().filter(|(sign, _)| **sign == letter).map(|(_, rest)| rest),
        sign => (*sign == letter).then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let matches = |text: &str, pattern: &str| {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            is_like(&letters(text), &letters(pattern))
        };
        for (text, pattern) in [
            ("", ""),
            ("", "*"),
            ("orders:42", "orders:*"),
            ("orders:42", "*4?"),
            ("a[b", "a\\[b"),
            ("abc", "a[xb]c"),
            ("abc", "a[a-c]c"),
            ("abc", "a[^x]c"),
            ("abcabd", "*ab?"),
            ("a*b", "*\\*b"),
            ("mississippi", "m*iss*p*i"),
        ] {
            assert!(matches(text, pattern), "{text} {pattern}");
        }
        for (text, pattern) in [("a", ""), ("", "?"), ("abc", "a[^b]c"), ("abc", "ab"), ("b", "a*")]
        {
            assert!(!matches(text, pattern), "{text} {pattern}");
        }
    }

    #[test]
    fn pattern_with_many_stars_matches_without_exponential_time() {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        let (text, pattern) = (letters(&"a".repeat(60)), "*a".repeat(30));
        assert!(is_like(&text, &letters(&pattern)));
        // With a step back for each star, there would be more ways than can be tried.
        assert!(!is_like(&text, &letters(&(pattern + "b"))));
    }
}
