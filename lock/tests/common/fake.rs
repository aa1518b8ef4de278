//! A server whose replies a test chooses.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Listens until it is dropped.
pub(crate) struct FakeServer {
    address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl FakeServer {
    /// What `answer` makes of the words of a command are the bytes of the reply. Scripts without
    /// keys run.
    pub(crate) fn start(answer: impl Fn(&[&str]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (over, answer) = (Arc::new(AtomicBool::new(false)), Arc::new(answer));
        let is_over = Arc::clone(&over);
        let accept = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let answer = Arc::clone(&answer);
                // It ends when the client does.
                let serve = move || drop(serve(&stream, &*answer));
                thread::Builder::new().spawn(serve).unwrap();
            }
        };
        thread::Builder::new().spawn(accept).unwrap();
        Self { address, over }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(mut stream: &TcpStream, answer: impl Fn(&[&str]) -> Vec<u8>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let words = request(&mut reader)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match *words {
            // Whether it runs scripts, which a client asks when it connects.
            ["EVAL" | "EVALSHA", _, "0"] => b":1\r\n".to_vec(),
            _ => answer(&words),
        };
        stream.write_all(&reply)?;
    }
}

/// The words of the next command.
pub(crate) fn request(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut number = |sign: char| {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let number = line.trim().strip_prefix(sign).and_then(|number| number.parse().ok());
        let number: usize = number.ok_or(io::ErrorKind::UnexpectedEof)?;
        if sign == '*' {
            return Ok((number, String::new()));
        }
        let mut word = vec![0; number + 2];
        reader.read_exact(&mut word)?;
        word.truncate(number);
        Ok::<_, io::Error>((number, String::from_utf8_lossy(&word).into_owned()))
    };
    let (words, _) = number('*')?;
    (0..words).map(|_| number('$').map(|(_, word)| word)).collect()
}

/// A list of texts.
pub(crate) fn array(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<String> = words.collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}
