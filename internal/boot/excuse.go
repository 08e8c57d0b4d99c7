package boot

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"time"

	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// excusePatience bounds the time that a process takes to tell the others why it cannot join them.
const excusePatience = time.Second

// excuse tells the rendezvous, if there is one by now, that this process cannot join because of a variable,
// so that all ranks know why it does not come. With a secret that cannot be read, they hear that it
// was refused because of that.
func (e *Environment) excuse(ctx context.Context, v *values, why error) {
	number, rank := EnvRank, uint32(noRank)
	if !v.set(EnvRank) {
		number = envCompletionIndex
	}
	if n, err := strconv.ParseUint(v.get(number), 10, 32); err == nil && n < MaxSize {
		rank = uint32(n)
	}
	if e.Server == "" || e.Size == 1 || rank == 0 && !e.Launched { // rank 0 would run the rendezvous itself
		return
	}
	id := *e
	if id.Secret == nil && !id.Insecure {
		id.Secret = newSecret()
	}
	over, cancel := wait.Patience(ctx, excusePatience)
	defer cancel()
	for told := false; !told && over.Err() == nil; {
		conn, err := reach.Dial(over, []string{e.Server}, reach.Options{Meet: func(conn net.Conn) (final bool, err error) {
			told = true // or refused
			server, err := proof.Dial(conn, id.proofParams(rank), []byte(serverName))
			if err != nil || server.Minor < reportMinor {
				return true, err
			}
			if _, err := conn.Write((leave{rank: rank, reason: reasonGaveUp, text: shorten(why.Error(), maxText)}).Append(nil)); err != nil {
				return true, err
			}
			bufio.NewReader(conn).ReadByte() // until it has read that, and hangs up
			return true, nil
		}})
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-time.After(excusePatience / 20):
		case <-over.Done():
		}
	}
}

// proofParams are what this process proves to a rendezvous.
func (e *Environment) proofParams(rank uint32) proof.Params {
	return proof.Params{
		Secret:   e.Secret,
		Insecure: e.Insecure,
		Protocol: protocolName,
		Major:    protocolMajor,
		Minor:    protocolMinor,
		Job:      e.Job,
		Self:     rankID(int(rank)),
	}
}
