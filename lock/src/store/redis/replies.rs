//! Replies as they come from a server: bytes are read as they are needed, and become values.
//!
//! RESP2, which servers speak unless asked for another. What is no RESP is an error, and the connection is at its end:
//! where the next reply begins is not known then. Room grows only with what has come, whatever length is announced. If
//! the time is over in the middle of a reply, what has come of it is kept, and the next look begins with it.

use std::io::{self, Read};
use std::ops::Range;

use crate::value::Value;

/// What was read of a connection, and not used yet.
#[derive(Debug)]
pub(super) struct Replies {
    buffer: Vec<u8>,
    /// Where in it the next reply begins.
    begin: usize,
    /// What of it was read and not used.
    unused: Range<usize>,
}

/// Most replies are a few bytes, and a message is a name and a few more.
const ROOM: usize = 512;

/// No operation is answered with lists in lists in lists.
const DEEPEST: usize = 8;

/// What a server sends at most, unless it is told otherwise.
const LONGEST: usize = 512 * 1024 * 1024;

impl Replies {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::new(), begin: 0, unused: 0..0 }
    }

    /// The next reply. After an error there is none, unless it was the reader's and passes.
    pub(super) fn next(&mut self, reader: &mut impl Read) -> io::Result<Value> {
        let value = self.value(reader, DEEPEST);
        match value {
            Ok(_) => self.begin = self.unused.start,
            Err(_) => self.unused.start = self.begin,
        }
        value
    }

    fn value(&mut self, reader: &mut impl Read, deepest: usize) -> io::Result<Value> {
        let line = self.line(reader)?;
        let Some((kind, rest)) = self.buffer.get(line).and_then(<[u8]>::split_first) else {
            return Err(no_reply());
        };
        let length = match kind {
            b'+' => return Ok(Value::Text(text(rest))),
            b'-' => return Ok(refusal(&text(rest))),
            b':' => return number(rest).map(Value::Integer),
            b'$' | b'*' if rest == b"-1" => return Ok(Value::Nil),
            b'$' | b'*' => usize::try_from(number(rest)?).map_err(|_| no_reply())?,
            _ => return Err(no_reply()),
        };
        if *kind == b'$' {
            return self.bulk(reader, length);
        }
        let deeper = deepest.checked_sub(1).ok_or_else(no_reply)?;
        let mut parts = Vec::with_capacity(length.min(ROOM));
        for _ in 0..length {
            parts.push(self.value(reader, deeper)?);
        }
        Ok(Value::Array(parts))
    }

    /// Text of that length, and the end of its line.
    fn bulk(&mut self, reader: &mut impl Read, length: usize) -> io::Result<Value> {
        if length > LONGEST {
            return Err(no_reply());
        }
        let with_end = length + 2;
        while self.unused.len() < with_end {
            self.read(reader)?;
        }
        let bytes = self.take(with_end);
        let bytes = self.buffer.get(bytes).and_then(|bytes| bytes.strip_suffix(b"\r\n"));
        bytes.map(|bytes| Value::Text(text(bytes))).ok_or_else(no_reply)
    }

    /// A line without its end. It stays where it is until more is read.
    fn line(&mut self, reader: &mut impl Read) -> io::Result<Range<usize>> {
        let mut looked = 0;
        loop {
            let unused = self.buffer.get(self.unused.clone()).unwrap_or_default();
            let end = unused.iter().skip(looked).position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.take(looked + end + 1);
                return match self.buffer.get(line.clone()) {
                    Some([.., b'\r', b'\n']) => Ok(line.start..line.end - 2),
                    _ => Err(no_reply()),
                };
            }
            looked = unused.len();
            if looked > LONGEST {
                return Err(no_reply());
            }
            self.read(reader)?;
        }
    }

    /// Uses so many bytes, which have been read.
    fn take(&mut self, bytes: usize) -> Range<usize> {
        let start = self.unused.start;
        self.unused.start += bytes;
        start..self.unused.start
    }

    fn read(&mut self, reader: &mut impl Read) -> io::Result<()> {
        // The replies before make room.
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.unused.end, 0);
            self.unused = self.unused.start - self.begin..self.unused.end - self.begin;
            self.begin = 0;
        }
        if self.unused.end == self.buffer.len() {
            self.buffer.resize((2 * self.buffer.len()).max(ROOM), 0);
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
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(bytes: &[u8]) -> io::Result<i64> {
    str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(no_reply)
}

fn no_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what the server sent is no reply")
}

/// Before Redis 7, an error inside a script is wrapped in a sentence. The code is what follows the script's line.
fn refusal(line: &str) -> Value {
    const WRAPPED: [&str; 4] = ["WRONGTYPE", "OOM", "READONLY", "NOREPLICAS"];
    let (code, message) = line.split_once(' ').unwrap_or((line, ""));
    let inner = WRAPPED
        .into_iter()
        .find(|inner| code == "ERR" && message.contains(&format!(": {inner} ")))
        .or_else(|| (code == "ERR" && message.contains(": -OOM ")).then_some("OOM"));
    Value::Refusal { code: inner.unwrap_or(code).to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hands out so many bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (now, later) = self.0.split_at(self.0.len().min(self.1).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            self.0 = later;
            Ok(now.len())
        }
    }

    fn all(bytes: &[u8], at_once: usize) -> Vec<Value> {
        let (mut replies, mut reader) = (Replies::new(), Slowly(bytes, at_once));
        let mut values = Vec::new();
        while let Ok(value) = replies.next(&mut reader) {
            values.push(value);
        }
        values
    }

    fn error(bytes: &[u8]) -> io::ErrorKind {
        Replies::new().next(&mut Slowly(bytes, usize::MAX)).unwrap_err().kind()
    }

    fn words(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn replies_of_every_form_are_read_one_after_the_other_however_they_come() {
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
    fn a_text_that_is_longer_than_the_room_is_read_whole() {
        let long = "x".repeat(10 * ROOM);
        let bytes = format!("${}\r\n{long}\r\n:1\r\n", long.len());
        assert_eq!(all(bytes.as_bytes(), 100), [words(&long), Value::Integer(1)]);
    }

    /// Has one byte at a time, and none in between.
    struct Haltingly<'a>(&'a [u8], bool);

    impl Read for Haltingly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                Slowly(self.0, 1).read(buffer)
            }
            .inspect(|read| self.0 = &self.0[*read..])
        }
    }

    #[test]
    fn what_has_come_of_a_reply_is_kept_when_the_time_is_over() {
        let bytes = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n:1\r\n+OK\r\n";
        let (mut replies, mut reader) = (Replies::new(), Haltingly(bytes, false));
        let mut next = || loop {
            match replies.next(&mut reader) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                reply => return reply.unwrap(),
            }
        };
        let message = Value::Array(vec![words("message"), words("a"), Value::Integer(1)]);
        assert_eq!([next(), next()], [message, words("OK")]);
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for bytes in
            ["\r\n", "x\r\n", ":\r\n", ":1x\r\n", "$-2\r\n", "*-2\r\n", "$1\r\nabc", ":1\n"]
        {
            assert_eq!(error(bytes.as_bytes()), io::ErrorKind::InvalidData, "{bytes:?}");
        }
        assert_eq!(error(b"*1\r\n".repeat(100).as_slice()), io::ErrorKind::InvalidData);
        assert_eq!(error(b"$999999999999\r\n"), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_end_of_the_connection_is_an_error_wherever_it_comes() {
        for bytes in ["", "*2\r\n:1\r\n", "$5\r\nab", "+OK\r", "*999999999\r\n"] {
            assert_eq!(error(bytes.as_bytes()), io::ErrorKind::UnexpectedEof, "{bytes:?}");
        }
    }

    #[test]
    fn an_error_that_a_script_has_wrapped_has_the_code_of_what_it_wraps() {
        let wrapped = "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key";
        let code = |line| match refusal(line) {
            Value::Refusal { code, .. } => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(wrapped), "WRONGTYPE");
        assert_eq!(code("ERR f_1: -OOM command not allowed"), "OOM");
        assert_eq!(code("ERR unknown command"), "ERR");
        assert_eq!(code("LOADING"), "LOADING");
    }

    /// A reply as bytes. Depth is what a server may nest: less than what is refused.
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

    /// What the redis crate has read, as we say it.
    fn said(theirs: redis::Value) -> Value {
        match theirs {
            redis::Value::Nil => Value::Nil,
            redis::Value::Int(number) => Value::Integer(number),
            redis::Value::BulkString(bytes) => Value::Text(text(&bytes)),
            redis::Value::SimpleString(text) => Value::Text(text),
            redis::Value::Okay => words("OK"),
            redis::Value::Array(parts) => Value::Array(parts.into_iter().map(said).collect()),
            redis::Value::ServerError(error) => {
                let message = error.details().unwrap_or_default().to_owned();
                Value::Refusal { code: error.code().to_owned(), message }
            }
            other => panic!("no reply of the old protocol: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn what_a_server_sends_is_read_as_the_redis_crate_reads_it(
            replies in prop::collection::vec(reply(), 1..4),
            at_once in 1_usize..99,
        ) {
            let theirs: Vec<Value> = replies
                .iter()
                .map(|reply| said(redis::parse_redis_value(reply).unwrap()))
                .collect();
            prop_assert_eq!(all(&replies.concat(), at_once), theirs);
        }

        #[test]
        fn what_is_like_a_reply_is_none_or_what_the_redis_crate_reads(
            pieces in prop::collection::vec("[-+:$*]|-?[0-9]{1,2}|[a-zA-Z ]{1,5}|\r\n|\r|\n", 1..20),
        ) {
            let bytes = pieces.concat();
            let ours = Replies::new().next(&mut Slowly(bytes.as_bytes(), usize::MAX));
            // They may take what we do not, as blanks around a number.
            if let (Ok(ours), Ok(theirs)) = (ours, redis::parse_redis_value(bytes.as_bytes())) {
                prop_assert_eq!(ours, said(theirs));
            }
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>, at_once in 1_usize..9) {
            all(&bytes, at_once);
        }
    }
}
