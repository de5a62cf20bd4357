//! Making a connection: TCP, TLS, hello; what both ends do until the first frame.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::{TlsConnector, client, rustls, server};

use super::connection::{Stream, Wire};
use super::error::NetworkError;
use super::hello::{HELLO_BYTES, Hello, HelloError, VERSIONS, Verdict};

/// How long all of a dial may take.
pub const DIAL_PATIENCE: Duration = Duration::from_millis(1500);
/// Of the places that a name resolves to, so many are tried.
const PLACES_MAX: usize = 16;
/// So many names are looked up at once.
const LOOKUPS_MAX: usize = 16;
/// Reads from the socket are gathered: TLS asks for 4 KiB at a time.
const SOCKET_BUFFER_BYTES: usize = 128 << 10;
/// How much the kernel takes of what it cannot send yet, so that a ping does not wait behind megabytes of it.
const UNSENT_BYTES_MAX: u32 = 256 << 10;
/// How much TLS takes before it must be written.
pub(super) const TLS_BUFFER_BYTES: usize = 256 << 10;

static LOOKUPS: Lookups = Lookups(Semaphore::const_new(LOOKUPS_MAX));

/// A connection to be encrypted.
pub(super) type Socket = BufReader<TcpStream>;
/// The dialler's end.
pub(super) type Dialled = client::TlsStream<Socket>;

/// What TCP is told for the sake of short answers and honest queues.
pub(super) fn prepare(stream: TcpStream) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    Ok(BufReader::with_capacity(SOCKET_BUFFER_BYTES, stream))
}

/// Connects to whatever `address` resolves to, in turn.
pub(super) async fn connect(address: &str) -> Result<Socket, NetworkError> {
    connect_to_any(address, resolve(address).await?).await
}

/// What `address`, host and port, resolves to.
pub(super) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, NetworkError> {
    if let Ok(place) = address.parse() {
        return Ok(vec![place]);
    }
    let unresolved = |why: String| NetworkError::Unresolved { address: address.to_owned(), why };
    let name = address.to_owned();
    let looking = async { Ok(tokio::net::lookup_host(name).await?.take(PLACES_MAX).collect()) };
    let places: Vec<SocketAddr> = LOOKUPS.take_turn(looking).await.map_err(|error| unresolved(error.to_string()))?;
    if places.is_empty() { Err(unresolved("the name has no address".into())) } else { Ok(places) }
}

/// Connects to one of `places`, which `address` resolved to.
pub(super) async fn connect_to_any(address: &str, places: Vec<SocketAddr>) -> Result<Socket, NetworkError> {
    let mut failed = None;
    for place in places {
        match TcpStream::connect(place).await.and_then(prepare) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Some(NetworkError::of(address, &error)),
        }
    }
    Err(failed.expect("there is a place, and it was not reached"))
}

/// Makes TLS of a connection.
pub(super) async fn encrypt(
    address: &str,
    stream: Socket,
    connector: &TlsConnector,
    name: rustls::pki_types::ServerName<'static>,
) -> Result<Dialled, NetworkError> {
    let mut stream = connector.connect(name, stream).await.map_err(|error| NetworkError::of(address, &error))?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    Ok(stream)
}

/// Says hello to the listener, and hears its answer.
pub(super) async fn greet(
    address: &str,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    hello: &Hello,
) -> Result<Hello, NetworkError> {
    let failed = |error| NetworkError::of(address, &error);
    let answer = async {
        stream.write_all(&hello.encode()).await?;
        stream.flush().await?;
        hear(stream).await
    };
    let answer = answer.await.map_err(failed)?;
    Hello::decode(&answer, VERSIONS)
        .and_then(|answer| {
            let sensible = answer.verdict != Verdict::NoVersion && answer.lane == hello.lane;
            if sensible { Ok(answer) } else { Err(HelloError::Garbled) }
        })
        .map_err(|why| NetworkError::Hello { address: address.to_owned(), why })
}

/// The other end's hello, as it came.
pub(super) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; HELLO_BYTES]> {
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Answers a hello.
pub(super) async fn answer(stream: &mut (impl AsyncWrite + Unpin), hello: &Hello) -> io::Result<()> {
    stream.write_all(&hello.encode()).await?;
    stream.flush().await
}

/// Look-ups of names. Each takes a thread until a name server answers, also where nobody waits for it any more: those threads
/// are the ones that wait for disks.
struct Lookups(Semaphore);

impl Lookups {
    /// What `looking` finds, once fewer than [`LOOKUPS_MAX`] are under way.
    async fn take_turn<T: Send + 'static>(
        &'static self,
        looking: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let turn = self.0.acquire().await.map_err(io::Error::other)?;
        let looked = tokio::spawn(async move {
            let found = looking.await;
            drop(turn);
            found
        });
        looked.await.map_err(io::Error::other)?
    }
}

impl Stream for client::TlsStream<Socket> {
    fn wire(&self) -> io::Result<Option<Wire>> {
        Wire::of(self.get_ref().0.get_ref()).map(Some)
    }
}

impl Stream for server::TlsStream<Socket> {
    fn wire(&self) -> io::Result<Option<Wire>> {
        Wire::of(self.get_ref().0.get_ref()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_that_nobody_waits_for_any_more_are_looked_up_by_so_many_at_once() {
        static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
        static HERE: Lookups = Lookups(Semaphore::const_new(LOOKUPS_MAX));
        for _ in 0..100 {
            let looking = async {
                UNDER_WAY.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<io::Result<()>>().await
            };
            assert!(tokio::time::timeout(DIAL_PATIENCE, HERE.take_turn(looking)).await.is_err(), "nobody answers");
        }
        assert_eq!(UNDER_WAY.load(Ordering::SeqCst), LOOKUPS_MAX);
    }
}
