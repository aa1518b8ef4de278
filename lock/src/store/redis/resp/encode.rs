//! Encodes commands: a list of words, each with its length.

use itoa::Buffer;

use crate::model::owner::Owner;
use crate::ops::WRITE;

/// A command under construction.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    packed: &'a mut Vec<u8>,
}

/// The bytes of a word besides its text: the length, and two ends of lines.
const WORD_OVERHEAD: usize = 16;

impl<'a> Command<'a> {
    /// Begins a command after the contents of `packed`, with room for `words` words of about
    /// `bytes` bytes in total. The caller appends exactly `words` words.
    pub(crate) fn append(packed: &'a mut Vec<u8>, words: usize, bytes: usize) -> Self {
        packed.reserve(bytes + WORD_OVERHEAD * (words + 1));
        header(b'*', words, packed);
        Self { packed }
    }

    /// Returns the bytes of the command with these words.
    pub(crate) fn of(words: &[&str]) -> Vec<u8> {
        let mut packed = Vec::new();
        let bytes = words.iter().map(|word| word.len()).sum();
        let mut command = Command::append(&mut packed, words.len(), bytes);
        for word in words {
            command.word(word.as_bytes());
        }
        packed
    }

    /// Appends a word.
    // Not inlined: a command has a dozen words, and each inlined copy would be fetched.
    #[inline(never)]
    pub(crate) fn word(&mut self, word: &[u8]) {
        header(b'$', word.len(), self.packed);
        self.packed.extend_from_slice(word);
        self.end_line();
    }

    /// Appends a word given in parts.
    pub(crate) fn word_of(&mut self, parts: &[&str]) {
        header(b'$', parts.iter().map(|part| part.len()).sum(), self.packed);
        for part in parts {
            self.packed.extend_from_slice(part.as_bytes());
        }
        self.end_line();
    }

    /// Appends a word with the decimal digits of `number`.
    pub(crate) fn number(&mut self, number: i64) {
        self.word(Buffer::new().format(number).as_bytes());
    }

    /// Appends an owner's text.
    pub(crate) fn owner(&mut self, owner: &Owner) {
        self.owner_and(owner, "");
    }

    /// Appends an owner's text with the suffix of a writer.
    pub(crate) fn writer(&mut self, owner: &Owner) {
        self.owner_and(owner, WRITE);
    }

    /// Appends a word with an owner's text and `suffix`.
    fn owner_and(&mut self, owner: &Owner, suffix: &str) {
        let (client, number) = owner.parts();
        let mut buffer = Buffer::new();
        let number = buffer.format(number);
        header(b'$', client.len() + 1 + number.len() + suffix.len(), self.packed);
        self.packed.extend_from_slice(&client);
        self.packed.push(b':');
        self.packed.extend_from_slice(number.as_bytes());
        self.packed.extend_from_slice(suffix.as_bytes());
        self.end_line();
    }

    fn end_line(&mut self) {
        self.packed.extend_from_slice(b"\r\n");
    }
}

/// Appends a line with `kind` and the number of words or bytes to follow.
fn header(kind: u8, number: usize, text: &mut Vec<u8>) {
    // Nearly all numbers have one or two digits.
    let digit = |digit: usize| b'0'.wrapping_add(u8::try_from(digit % 10).unwrap_or(0));
    match number {
        0..10 => text.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
        10..100 => {
            let line = [kind, digit(number / 10), digit(number), b'\r', b'\n'];
            text.extend_from_slice(&line);
        }
        _ => {
            text.push(kind);
            text.extend_from_slice(Buffer::new().format(number).as_bytes());
            text.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::owner::ClientId;

    fn written(write: impl FnOnce(&mut Command<'_>)) -> String {
        let mut packed = Vec::new();
        write(&mut Command::append(&mut packed, 1, 0));
        String::from_utf8(packed).unwrap()
    }

    fn one_word(word: &str) -> String {
        format!("*1\r\n${}\r\n{word}\r\n", word.len())
    }

    #[test]
    fn command_encodes_its_word_count_and_each_word_length() {
        let packed = Command::of(&["SELECT", "", "größer\r\n"]);
        assert_eq!(packed, "*3\r\n$6\r\nSELECT\r\n$0\r\n\r\n$10\r\ngrößer\r\n\r\n".as_bytes());
    }

    #[test]
    fn an_owner_is_encoded_as_it_is_displayed() {
        let client = ClientId::random();
        for _ in 0..1001 {
            let owner = client.next_owner();
            assert_eq!(written(|command| command.owner(&owner)), one_word(&owner.to_string()));
            let writer = format!("{owner}:write");
            assert_eq!(written(|command| command.writer(&owner)), one_word(&writer));
        }
    }

    #[test]
    fn the_smallest_and_largest_numbers_are_encoded() {
        for number in [i64::MIN, -10, -1, 0, 9, 10, 99, 100, i64::MAX] {
            assert_eq!(written(|command| command.number(number)), one_word(&number.to_string()));
        }
    }

    proptest! {
        #[test]
        fn a_command_is_encoded_as_by_the_redis_crate(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
            numbers: Vec<i64>,
        ) {
            let mut packed = Vec::new();
            let mut ours = Command::append(&mut packed, words.len() + numbers.len(), 0);
            let mut theirs = redis::Cmd::new();
            for word in &words {
                ours.word(word);
                theirs.arg(word);
            }
            for number in numbers {
                ours.number(number);
                theirs.arg(number);
            }
            prop_assert_eq!(packed, theirs.get_packed_command());
        }

        #[test]
        fn given_words_are_encoded_as_by_the_redis_crate(words in prop::collection::vec(any::<String>(), 1..9)) {
            let mut theirs = redis::Cmd::new();
            theirs.arg(&words);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(Command::of(&words), theirs.get_packed_command());
        }

        #[test]
        fn a_number_is_encoded_as_by_the_standard_library(number: i64) {
            prop_assert_eq!(
                written(|command| command.number(number)),
                one_word(&number.to_string())
            );
        }
    }
}
