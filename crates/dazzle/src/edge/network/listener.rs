//! Who comes from outside: told apart by the first message of TLS, proven, greeted, and handed on. Until then a stranger
//! can take a bounded time and a bounded number of places, and nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server};
use tracing::{debug, info, warn};

use crate::edge::trust::{Purpose, TrustError, named_in};

use super::Shared;
use super::connection::{Connection, Name};
use super::dialling::{self, DIAL_PATIENCE, Socket};
use super::error::NetworkError;
use super::guests::{Guest, Guests};
use super::hello::{Hello, HelloError, Lane, VERSIONS, Verdict};
use super::join::{self, HEAR_PATIENCE, JOIN_PATIENCE};

/// How many of those that come to join are dealt with at once; more are turned away. They take no places of nodes.
const JOINERS_MAX: usize = 32;
/// How long a name server may take to tell where this machine's own address is.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait when the kernel has nothing to accept with, such as file descriptors.
const RESPITE: Duration = Duration::from_millis(100);

type Welcomed = server::TlsStream<Socket>;

/// Whether this machine can listen on `address`, and others call it there, as far as it can tell by itself.
pub async fn expect_free(address: &str) -> Result<(), NetworkError> {
    let nowhere = || NetworkError::Nowhere { address: address.to_owned() };
    let places = tokio::time::timeout(RESOLVE_PATIENCE, dialling::resolve(address)).await.map_err(|_| {
        NetworkError::Unresolved { address: address.to_owned(), why: "no name server answers".into() }
    })??;
    if places.iter().any(|place| place.ip().is_unspecified() || place.ip().is_multicast()) {
        return Err(nowhere());
    }
    let deaf =
        |error: std::io::Error| NetworkError::NoListening { address: address.to_owned(), why: error.to_string() };
    TcpListener::bind(&places[..]).await.map(drop).map_err(deaf)
}

/// Those who have not yet proven who they are, and how each is told that it has to go.
#[derive(Default)]
struct Lobby {
    guests: Guests,
    doors: BTreeMap<Guest, oneshot::Sender<()>>,
}

/// A place in the lobby, until it is dropped.
struct Place {
    lobby: Arc<Mutex<Lobby>>,
    guest: Guest,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lobby = lock(&self.lobby);
        lobby.guests.leave(self.guest);
        lobby.doors.remove(&self.guest);
    }
}

fn lock(lobby: &Mutex<Lobby>) -> MutexGuard<'_, Lobby> {
    lobby.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for somebody who came from there, and what says that another one needs it more.
fn place(lobby: &Arc<Mutex<Lobby>>, from: SocketAddr) -> (Place, oneshot::Receiver<()>) {
    let (door, shown_out) = oneshot::channel();
    let mut there = lock(lobby);
    let (guest, outcast) = there.guests.enter(from.ip());
    if let Some(door) = outcast.and_then(|outcast| there.doors.remove(&outcast)) {
        // Who is gone already need not be told.
        let _ = door.send(());
    }
    there.doors.insert(guest, door);
    (Place { lobby: lobby.clone(), guest }, shown_out)
}

/// Accepts until the network stops.
pub(super) async fn accept_all(shared: Arc<Shared>, listener: TcpListener) {
    let lobby = Arc::new(Mutex::new(Lobby::default()));
    let joiners = Arc::new(Semaphore::new(JOINERS_MAX));
    loop {
        match listener.accept().await {
            Ok(accepted) => greet(&shared, accepted, &lobby, &joiners),
            Err(error) => {
                warn!(%error, "no connection can be accepted now");
                tokio::time::sleep(RESPITE).await;
            }
        }
    }
}

/// Deals with somebody who has connected, beside everything else.
fn greet(
    shared: &Arc<Shared>,
    (stream, from): (TcpStream, SocketAddr),
    lobby: &Arc<Mutex<Lobby>>,
    joiners: &Arc<Semaphore>,
) {
    let (place, shown_out) = place(lobby, from);
    let (shared, joiners) = (shared.clone(), joiners.clone());
    shared.office.runtime.clone().spawn(async move {
        let address = from.to_string();
        let error = tokio::select! {
            received = receive(&shared, stream, &address, (place, &joiners)) => received.err(),
            Ok(()) = shown_out => Some(NetworkError::HungUp { address: address.clone() }),
        };
        if let Some(error) = error {
            // Strangers may knock as often as they like; the log is not theirs.
            debug!(%error, "a connection was not made");
        }
    });
}

async fn receive(
    shared: &Arc<Shared>,
    stream: TcpStream,
    address: &str,
    (place, joiners): (Place, &Semaphore),
) -> Result<(), NetworkError> {
    let timed_out = || NetworkError::TimedOut { address: address.to_owned() };
    let failed = |error| NetworkError::of(address, &error);
    let stream = dialling::prepare(stream).map_err(failed)?;
    let started = tokio::time::timeout(DIAL_PATIENCE, LazyConfigAcceptor::new(Default::default(), stream));
    let started = started.await.map_err(|_| timed_out())?.map_err(failed)?;
    let joins = started.client_hello().alpn().into_iter().flatten().any(|offer| offer == Purpose::Join.protocol());
    if joins {
        let Ok(_joiner) = joiners.try_acquire() else {
            return Err(NetworkError::HungUp { address: address.to_owned() });
        };
        drop(place);
        let joined = tokio::time::timeout(JOIN_PATIENCE, let_in(shared, started));
        joined.await.map_err(|_| timed_out())?.map_err(failed)
    } else {
        let greeted = tokio::time::timeout(2 * DIAL_PATIENCE, welcome(shared, started, (address, place))).await;
        greeted.map_err(|_| timed_out())?
    }
}

async fn let_in(shared: &Shared, started: StartHandshake<Socket>) -> std::io::Result<()> {
    let hearing = tokio::time::timeout(HEAR_PATIENCE, async {
        let mut stream = started.into_stream(shared.identity.server(Purpose::Join)).await?;
        let heard = join::hear(&mut stream).await?;
        Ok::<_, std::io::Error>((stream, heard))
    });
    let (stream, heard) = hearing.await??;
    shared.door.answer(stream, heard, shared.now()).await
}

async fn welcome(
    shared: &Arc<Shared>,
    started: StartHandshake<Socket>,
    (address, place): (&str, Place),
) -> Result<(), NetworkError> {
    let failed = |error| NetworkError::of(address, &error);
    let mut stream = started.into_stream(shared.identity.server(Purpose::Calls)).await.map_err(failed)?;
    stream.get_mut().1.set_buffer_limit(Some(dialling::TLS_BUFFER_BYTES));
    let caller = proven(shared, &stream).map_err(|why| NetworkError::Trust { address: address.to_owned(), why })?;
    // From here on it is a machine of the cluster, and has to go for nobody.
    drop(place);
    let said = dialling::hear(&mut stream).await.map_err(failed)?;
    let own = |verdict, lane| Hello { versions: VERSIONS, verdict, lane, session: shared.session };
    let hello = match Hello::decode(&said, VERSIONS) {
        Ok(hello) => hello,
        Err(why) => {
            warn!(node = caller.0, address, %why, "a node was turned away");
            if why != HelloError::Garbled {
                dialling::answer(&mut stream, &own(Verdict::NoVersion, Lane::Small)).await.map_err(failed)?;
            }
            return Err(NetworkError::Hello { address: address.to_owned(), why });
        }
    };
    let name = Name { peer: caller, lane: hello.lane, session: hello.session, dialled: false };
    let peer = shared.peer(caller);
    let connection = Connection::new(name, shared.office.clone());
    // The welcome goes the way of frames, ahead of them: between the adding and the running nothing is awaited, so no
    // connection is ever added that does not run.
    connection.say(&own(Verdict::Welcome, hello.lane));
    let ours = caller == shared.identity.name().node;
    if ours || !peer.takes(hello.session).await || !peer.add(connection.clone()) {
        let error = NetworkError::Duplicate { node: caller };
        warn!(address, %error, "a node was turned away");
        dialling::answer(&mut stream, &own(Verdict::Duplicate, hello.lane)).await.map_err(failed)?;
        return Err(error);
    }
    info!(node = caller.0, lane = hello.lane.number(), address, "a node connected");
    peer.run(&connection, stream);
    Ok(())
}

/// Who the caller is: its certificate is of our CA, as TLS has seen to.
fn proven(shared: &Shared, stream: &Welcomed) -> Result<NodeId, TrustError> {
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let name = certificate.and_then(named_in).ok_or(TrustError::Nameless)?;
    let expected = shared.identity.name().cluster;
    if name.cluster != expected {
        return Err(TrustError::WrongCluster { expected, found: name.cluster });
    }
    Ok(name.node)
}
