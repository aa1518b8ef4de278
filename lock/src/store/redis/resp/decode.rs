//! Decodes replies from the bytes of a connection.
//!
//! The codec is our own for its cost. Encoding and parsing by the redis crate took half of the
//! client's work for a lock and its unlock: the crate clears kilobytes for a reply of a few bytes,
//! and parses by combined closures.
//!
//! The protocol is RESP2, the default of every server. Other bytes are an error, and so is a reply
//! beyond its [`Bounds`]. The connection cannot be used after an error, because the start of the
//! next reply is unknown. A message of another client that exceeds the bounds breaks the connection
//! of the subscriptions. Every channel is then subscribed again and waiters query their locks, so
//! no release is missed.
//!
//! The buffer grows only with the bytes that arrive, whatever length is announced, and shrinks
//! after a long reply. If a timeout ends a read in the middle of a reply, the bytes are retained
//! for the next read.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use crate::ops::value::Value;

/// Decodes the replies of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    bounds: Bounds,
    buffer: Vec<u8>,
    /// The start of the current reply in the buffer.
    begin: usize,
    /// The range of the buffer with undecoded bytes.
    unused: Range<usize>,
    /// How many more parts the current reply may have.
    parts: usize,
}

/// The maximum size of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    bytes: usize,
    /// The maximum number of parts of all lists in a reply.
    parts: usize,
}

impl Bounds {
    /// The bounds of every reply but a cluster's topology: far more than any reply or message
    /// needs. The longest name has 64 KiB, and the longest list has three parts for each replica of
    /// a master.
    const USUAL: Self = Self { bytes: 1024 * 1024, parts: 16 * 1024 };

    /// The bounds of a cluster's topology: 16,384 ranges of one hash slot, with five nodes each.
    pub(crate) const SLOTS: Self = Self { bytes: 32 * 1024 * 1024, parts: 1024 * 1024 };
}

/// The smallest buffer. Most replies are a few bytes, a message is slightly longer than a name, and
/// the replies to a batch of calls are read at once.
const MIN_BUFFER: usize = 2048;

/// The largest buffer that stays after its reply. A larger buffer shrinks.
const MAX_RETAINED_BUFFER: usize = 16 * 1024;

/// The maximum length of an error's text. The errors of servers are shorter, unless they repeat a
/// command or a name of up to 64 KiB. Errors and warnings live longer than replies.
const MAX_ERROR_LENGTH: usize = 1024;

/// How deep lists may be nested. No operation's reply comes near this limit.
const MAX_DEPTH: usize = 8;

impl Decoder {
    pub(crate) fn new() -> Self {
        let bounds = Bounds::USUAL;
        Self { bounds, buffer: Vec::new(), begin: 0, unused: 0..0, parts: bounds.parts }
    }

    /// Sets the maximum size of later replies.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Reads until a reply is complete, and returns the reply. After an error there are no more
    /// replies, unless the error is a timeout of the reader.
    pub(crate) fn next(&mut self, reader: &mut impl Read) -> io::Result<Value> {
        self.parts = self.bounds.parts;
        let value = self.value(reader, MAX_DEPTH);
        match value {
            Ok(_) => {
                self.begin = self.unused.start;
                self.shrink();
            }
            Err(_) => self.unused.start = self.begin,
        }
        value
    }

    /// Returns the next reply, if an earlier read received the whole reply. Also returns `None` if
    /// the bytes are not a reply; then [`next`](Self::next) returns the error.
    pub(crate) fn buffered(&mut self) -> Option<Value> {
        struct Nothing;

        impl Read for Nothing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }

        if self.unused.is_empty() { None } else { self.next(&mut Nothing).ok() }
    }

    /// Decodes a reply, or one part of a list. Lists may be nested `depth` deep.
    fn value(&mut self, reader: &mut impl Read, depth: usize) -> io::Result<Value> {
        let line = self.line(reader)?;
        let Some((kind, rest)) = self.buffer.get(line).and_then(<[u8]>::split_first) else {
            return Err(invalid_reply());
        };
        let length = match kind {
            b'+' => return Ok(Value::Text(text(rest))),
            b'-' => return Ok(refusal(&text(rest))),
            b':' => return number(rest).map(Value::Integer),
            b'$' | b'*' if rest == b"-1" => return Ok(Value::Nil),
            b'$' | b'*' => usize::try_from(number(rest)?).map_err(|_| invalid_reply())?,
            _ => return Err(invalid_reply()),
        };
        if *kind == b'$' {
            return self.bulk(reader, length);
        }
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| excessive(format_args!("lists more than {MAX_DEPTH} deep")))?;
        self.parts = self.parts.checked_sub(length).ok_or_else(|| {
            excessive(format_args!("a reply of more than {} parts", self.bounds.parts))
        })?;
        let mut parts = Vec::with_capacity(length.min(MIN_BUFFER));
        for _ in 0..length {
            parts.push(self.value(reader, depth)?);
        }
        Ok(Value::Array(parts))
    }

    /// Decodes a text of `length` bytes, and the end of its line.
    fn bulk(&mut self, reader: &mut impl Read, length: usize) -> io::Result<Value> {
        let with_end = length.saturating_add(2);
        self.check(with_end)?;
        while self.unused.len() < with_end {
            self.read(reader)?;
        }
        let bytes = self.take(with_end);
        let bytes = self.buffer.get(bytes).and_then(|bytes| bytes.strip_suffix(b"\r\n"));
        bytes.map(|bytes| Value::Text(text(bytes))).ok_or_else(invalid_reply)
    }

    /// Returns the range of the next line without its end. The range is valid until the next read.
    fn line(&mut self, reader: &mut impl Read) -> io::Result<Range<usize>> {
        let mut searched = 0;
        loop {
            let unused = self.buffer.get(self.unused.clone()).unwrap_or_default();
            if let [first, rest @ ..] = unused
                && !b"+-:$*".contains(first)
            {
                return Err(foreign(*first, rest));
            }
            let end = unused.iter().skip(searched).position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.take(searched + end + 1);
                return match self.buffer.get(line.clone()) {
                    Some([.., b'\r', b'\n']) => Ok(line.start..line.end - 2),
                    _ => Err(invalid_reply()),
                };
            }
            searched = unused.len();
            self.check(searched)?;
            self.read(reader)?;
        }
    }

    /// Returns an error if the reply exceeds its bounds with `bytes` more bytes.
    fn check(&self, bytes: usize) -> io::Result<()> {
        let before = self.unused.start - self.begin;
        if before.saturating_add(bytes) <= self.bounds.bytes {
            return Ok(());
        }
        Err(excessive(format_args!("a reply of more than {} bytes", self.bounds.bytes)))
    }

    /// Marks `bytes` bytes as decoded, and returns their range.
    fn take(&mut self, bytes: usize) -> Range<usize> {
        let start = self.unused.start;
        self.unused.start += bytes;
        start..self.unused.start
    }

    /// Reads at least one byte into the buffer, which grows if necessary. Fails at the end of the
    /// stream.
    fn read(&mut self, reader: &mut impl Read) -> io::Result<()> {
        self.compact();
        if self.unused.end == self.buffer.len() {
            self.buffer.resize((2 * self.buffer.len()).max(MIN_BUFFER), 0);
        }
        let room = self.buffer.get_mut(self.unused.end..).unwrap_or_default();
        match reader.read(room)? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            read => {
                self.unused.end += read;
                Ok(())
            }
        }
    }

    /// Moves the current reply to the start of the buffer, over the bytes of decoded replies.
    fn compact(&mut self) {
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.unused.end, 0);
            self.unused = self.unused.start - self.begin..self.unused.end - self.begin;
            self.begin = 0;
        }
    }

    /// Frees the memory of a long reply, unless many bytes are undecoded.
    fn shrink(&mut self) {
        if self.buffer.len() > MAX_RETAINED_BUFFER && self.unused.len() <= MAX_RETAINED_BUFFER / 2 {
            self.compact();
            self.buffer.truncate(self.unused.end.max(MIN_BUFFER));
            self.buffer.shrink_to_fit();
        }
    }
}

/// Converts the bytes of a reply to text. Invalid UTF-8 becomes U+FFFD.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Parses a decimal number. Fails if the bytes are not a number.
fn number(bytes: &[u8]) -> io::Result<i64> {
    str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid_reply)
}

/// Returns the error for bytes that are not a reply.
fn invalid_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent something that is not a reply")
}

/// Returns the error for an impossible first byte: the server is neither Redis nor Valkey.
fn foreign(first: u8, rest: &[u8]) -> io::Error {
    let reason = match (first, rest) {
        // The record type of an alert or a handshake, and the version.
        (0x15 | 0x16, [3, ..]) => "it expects TLS: write rediss:// instead of redis://",
        (b'H', [b'T', b'T', b'P', ..]) => "it is a web server: check the host and the port",
        _ => "it is no Redis or Valkey: check the host and the port",
    };
    let reason = format!("the server sent something that is not a reply, {reason}");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Returns the error for a reply that exceeds its bounds; `what` describes the reply.
fn excessive(what: fmt::Arguments<'_>) -> io::Error {
    let reason = format!("the server sent {what}, which is above the limit");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Splits an error reply into code and message.
///
/// Before Redis 7, an error inside a script is wrapped in a sentence: its code follows the script's
/// line, sometimes after a minus.
pub(crate) fn refusal(line: &str) -> Value {
    const WRAPPED: [&str; 4] = ["WRONGTYPE", "OOM", "READONLY", "NOREPLICAS"];
    let (code, message) = line.split_once(' ').unwrap_or((line, ""));
    let is_wrapped = |inner: &&str| {
        [": ", ": -"].iter().any(|before| message.contains(&format!("{before}{inner} ")))
    };
    let inner = WRAPPED.into_iter().find(|inner| code == "ERR" && is_wrapped(inner));
    Value::Refusal { code: without_end(inner.unwrap_or(code)), message: without_end(message) }
}

/// Truncates the text of a refusal to [`MAX_ERROR_LENGTH`] bytes. Cuts between words: a part of a
/// password would not be recognized, and so not be removed.
fn without_end(text: &str) -> String {
    if text.len() <= MAX_ERROR_LENGTH {
        return text.to_owned();
    }
    let end = text.bytes().take(MAX_ERROR_LENGTH).rposition(|byte| byte == b' ');
    let whole = end.and_then(|end| text.get(..end)).unwrap_or_default();
    format!("{whole}… ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that returns at most this many bytes at a time.
    struct ShortReader<'a>(&'a [u8], usize);

    impl Read for ShortReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (now, later) = self.0.split_at(self.0.len().min(self.1).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            self.0 = later;
            Ok(now.len())
        }
    }

    fn all(bytes: &[u8], at_once: usize) -> Vec<Value> {
        let (mut decoder, mut reader) = (Decoder::new(), ShortReader(bytes, at_once));
        let mut values = Vec::new();
        while let Ok(value) = decoder.next(&mut reader) {
            values.push(value);
        }
        values
    }

    fn error(bytes: &[u8]) -> io::ErrorKind {
        Decoder::new().next(&mut ShortReader(bytes, usize::MAX)).unwrap_err().kind()
    }

    fn words(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn all_reply_types_decode_for_any_split_of_the_bytes() {
        let bytes = b"+OK\r\n:-7\r\n$-1\r\n$5\r\na\r\nbc\r\n*-1\r\n*0\r\n*2\r\n$0\r\n\r\n*1\r\n:1\r\n-ERR no such\r\n";
        let refusal = Value::Refusal { code: "ERR".to_owned(), message: "no such".to_owned() };
        let expected = vec![
            words("OK"),
            Value::Integer(-7),
            Value::Nil,
            words("a\r\nbc"),
            Value::Nil,
            Value::Array(Vec::new()),
            Value::Array(vec![words(""), Value::Array(vec![Value::Integer(1)])]),
            refusal,
        ];
        for at_once in [1, 2, 3, 7, usize::MAX] {
            assert_eq!(all(bytes, at_once), expected, "{at_once} at a time");
        }
    }

    #[test]
    fn a_text_longer_than_the_buffer_is_decoded() {
        let long = "x".repeat(10 * MIN_BUFFER);
        let bytes = format!("${}\r\n{long}\r\n:1\r\n", long.len());
        assert_eq!(all(bytes.as_bytes(), 100), [words(&long), Value::Integer(1)]);
    }

    /// A reader of one byte at a time, with a timeout before each.
    struct InterruptedReader<'a>(&'a [u8], bool);

    impl Read for InterruptedReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                ShortReader(self.0, 1).read(buffer)
            }
            .inspect(|read| self.0 = &self.0[*read..])
        }
    }

    #[test]
    fn a_timeout_in_the_middle_of_a_reply_loses_no_bytes() {
        let bytes = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n:1\r\n+OK\r\n";
        let (mut decoder, mut reader) = (Decoder::new(), InterruptedReader(bytes, false));
        let mut next = || loop {
            match decoder.next(&mut reader) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                reply => return reply.unwrap(),
            }
        };
        let message = Value::Array(vec![words("message"), words("a"), Value::Integer(1)]);
        assert_eq!([next(), next()], [message, words("OK")]);
    }

    #[test]
    fn bytes_that_are_not_a_reply_are_an_error() {
        for bytes in
            ["\r\n", "x\r\n", ":\r\n", ":1x\r\n", "$-2\r\n", "*-2\r\n", "$1\r\nabc", ":1\n"]
        {
            assert_eq!(error(bytes.as_bytes()), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    /// A reader without an end.
    struct EndlessReader<'a>(&'a [u8], usize);

    impl Read for EndlessReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            for byte in &mut *buffer {
                *byte = self.0[self.1 % self.0.len()];
                self.1 += 1;
            }
            Ok(buffer.len())
        }
    }

    #[test]
    fn oversized_reply_error_names_the_bound_and_memory_is_bounded() {
        let long = format!("*9\r\n$500000\r\n{}\r\n", "x".repeat(500_000));
        let many = format!("*9\r\n*9000\r\n{}", ":1\r\n".repeat(9000));
        for (endless, reason) in [
            ("*1\r\n", "lists more than 8 deep"),
            ("*1000000000\r\n", "a reply of more than 16384 parts"),
            (&many, "a reply of more than 16384 parts"),
            ("$999999999999\r\n", "a reply of more than 1048576 bytes"),
            ("$18446744073709551615\r\n", "the server sent something that is not a reply"),
            ("$9223372036854775807\r\n", "a reply of more than 1048576 bytes"),
            ("+xxxxxxxx", "a reply of more than 1048576 bytes"),
            (&long, "a reply of more than 1048576 bytes"),
        ] {
            let mut decoder = Decoder::new();
            let error = decoder.next(&mut EndlessReader(endless.as_bytes(), 0)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(reason), "{error}");
            assert!(decoder.buffer.capacity() <= 4 * Bounds::USUAL.bytes);
        }
    }

    #[test]
    fn a_long_refusal_is_truncated_between_words() {
        let long = "x".repeat(900_000);
        for (bytes, code, message) in [
            (format!("-NOPERM no {long} here\r\n"), "NOPERM", "no… (900008 bytes)"),
            (format!("-NOPERM {long}\r\n"), "NOPERM", "… (900000 bytes)"),
            (format!("-{long} no\r\n"), "… (900000 bytes)", "no"),
            (format!("-ERR {long}: -OOM \r\n"), "OOM", "… (900007 bytes)"),
        ] {
            let expected = Value::Refusal { code: code.to_owned(), message: message.to_owned() };
            assert_eq!(all(bytes.as_bytes(), usize::MAX), [expected]);
        }
        let umlauts = format!("-ERR x {}\r\n", "ä".repeat(1000));
        assert_eq!(all(umlauts.as_bytes(), 100).len(), 1);
    }

    #[test]
    fn the_bounds_apply_to_one_reply_and_not_to_many() {
        let text = format!("$600000\r\n{}\r\n*9000\r\n", "x".repeat(600_000));
        let bytes = [text.into_bytes(), b":1\r\n".repeat(9000)].concat().repeat(3);
        assert_eq!(all(&bytes, 50_000).len(), 6);
    }

    #[test]
    fn the_slots_of_the_largest_cluster_fit_into_their_bounds() {
        let node = format!(
            "*4\r\n$45\r\n{0}\r\n:65535\r\n$40\r\n{1}\r\n*2\r\n$8\r\nhostname\r\n$99\r\n{2}\r\n",
            "f".repeat(45),
            "0".repeat(40),
            "h".repeat(99)
        );
        let ranges =
            (0..16_384).map(|slot| format!("*6\r\n:{slot}\r\n:{slot}\r\n{}", node.repeat(4)));
        let bytes = format!("*16384\r\n{}:7\r\n", ranges.collect::<String>());
        let mut reader = ShortReader(bytes.as_bytes(), usize::MAX);
        assert!(Decoder::new().next(&mut ShortReader(bytes.as_bytes(), usize::MAX)).is_err());
        let mut decoder = Decoder::new();
        decoder.set_bounds(Bounds::SLOTS);
        assert!(matches!(decoder.next(&mut reader), Ok(Value::Array(all)) if all.len() == 16_384));
        assert!(decoder.buffer.capacity() <= MAX_RETAINED_BUFFER, "{}", decoder.buffer.capacity());
        assert_eq!(decoder.next(&mut reader).unwrap(), Value::Integer(7));
    }

    #[test]
    fn the_memory_of_a_long_reply_is_given_back() {
        let long = format!("${}\r\n{}\r\n", 900_000, "x".repeat(900_000));
        let bytes = format!("{long}:1\r\n*1\r\n");
        for at_once in [1000, usize::MAX] {
            let (mut decoder, mut reader) =
                (Decoder::new(), ShortReader(bytes.as_bytes(), at_once));
            assert!(matches!(decoder.next(&mut reader), Ok(Value::Text(_))));
            assert!(
                decoder.buffer.capacity() <= MAX_RETAINED_BUFFER,
                "{}",
                decoder.buffer.capacity()
            );
            assert_eq!(decoder.next(&mut reader).unwrap(), Value::Integer(1));
        }
    }

    #[test]
    fn the_end_of_the_connection_is_an_error_at_every_place() {
        for bytes in ["", "*2\r\n:1\r\n", "$5\r\nab", "+OK\r", "*16000\r\n"] {
            assert_eq!(error(bytes.as_bytes()), io::ErrorKind::UnexpectedEof, "{bytes:?}");
        }
    }

    #[test]
    fn a_wrapped_error_of_a_script_has_the_code_of_the_original() {
        let wrapped = "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key";
        let code = |line| match refusal(line) {
            Value::Refusal { code, .. } => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(wrapped), "WRONGTYPE");
        assert_eq!(code("ERR f_1: -OOM command not allowed"), "OOM");
        let replica = "ERR Error running script (call to f_1): @user_script:22: @user_script: 22: -READONLY You can't write";
        assert_eq!(code(replica), "READONLY");
        assert_eq!(code("ERR unknown command"), "ERR");
        assert_eq!(code("LOADING"), "LOADING");
    }

    /// A reply as bytes, nested less deep than what is refused.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let line = |first: char, text: &str| format!("{first}{text}\r\n").into_bytes();
        let bulk =
            |bytes: Vec<u8>| [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
        let code = "ERR|WRONGTYPE|NOSCRIPT|MOVED|READONLY|LOADING|OOM|[A-Z]{1,9}";
        let one = prop_oneof![
            "[^\r\n]{0,20}".prop_map(move |text| line('+', &text)),
            (code, "( [a-z0-9 '`]{0,20})?")
                .prop_map(move |(code, rest)| line('-', &(code + &rest))),
            any::<i64>().prop_map(move |number| line(':', &number.to_string())),
            any::<Vec<u8>>().prop_map(bulk),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            Just(b"+OK\r\n".to_vec()),
        ];
        one.prop_recursive(6, 40, 6, |part| {
            prop::collection::vec(part, 0..6).prop_map(|parts| {
                [format!("*{}\r\n", parts.len()).into_bytes(), parts.concat()].concat()
            })
        })
    }

    /// A value of the redis crate as one of ours.
    fn converted(theirs: redis::Value) -> Value {
        match theirs {
            redis::Value::Nil => Value::Nil,
            redis::Value::Int(number) => Value::Integer(number),
            redis::Value::BulkString(bytes) => Value::Text(text(&bytes)),
            redis::Value::SimpleString(text) => Value::Text(text),
            redis::Value::Okay => words("OK"),
            redis::Value::Array(parts) => Value::Array(parts.into_iter().map(converted).collect()),
            redis::Value::ServerError(error) => {
                let message = error.details().unwrap_or_default().to_owned();
                Value::Refusal { code: error.code().to_owned(), message }
            }
            other => panic!("not a reply of RESP2: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn replies_are_decoded_as_by_the_redis_crate(
            replies in prop::collection::vec(reply(), 1..4),
            at_once in 1_usize..99,
        ) {
            let theirs: Vec<Value> = replies
                .iter()
                .map(|reply| converted(redis::parse_redis_value(reply).unwrap()))
                .collect();
            prop_assert_eq!(all(&replies.concat(), at_once), theirs);
        }

        #[test]
        fn almost_replies_are_errors_or_what_the_redis_crate_decodes(
            pieces in prop::collection::vec("[-+:$*]|-?[0-9]{1,2}|[a-zA-Z ]{1,5}|\r\n|\r|\n", 1..20),
        ) {
            let bytes = pieces.concat();
            let ours = Decoder::new().next(&mut ShortReader(bytes.as_bytes(), usize::MAX));
            // The crate accepts more, such as blanks around a number.
            if let (Ok(ours), Ok(theirs)) = (ours, redis::parse_redis_value(bytes.as_bytes())) {
                prop_assert_eq!(ours, converted(theirs));
            }
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes: Vec<u8>, at_once in 1_usize..9) {
            all(&bytes, at_once);
        }
    }
}
