package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/machine"
)

// meetingPlace is where the processes of a job meet that the ranks start.
type meetingPlace struct {
	listen string // where rank 0 listens, at any port
	at     string // the address at which this rank reaches it
	name   string // nobody else has it
}

// answerTime bounds how long rank 0 may take to answer at one of its addresses.
const answerTime = 5 * time.Second

// findMeetingPlace asks rank 0 for its addresses, and finds one that leads to it from here: of
// several networks not all do, and some addresses, as those of bridges of containers, are of
// many hosts, and lead each to itself. On one host it is loopback.
func findMeetingPlace(ctx context.Context, job *boot.Job, apart bool) (meetingPlace, error) {
	type door struct {
		Name      string   `json:"name"`
		Port      string   `json:"port"`
		Addresses []string `json:"addresses"`
	}
	mine := door{Name: rand.Text()}
	var err error
	if apart && job.Rank() == 0 {
		var ln net.Listener
		if ln, err = net.Listen("tcp", ":0"); err == nil {
			defer ln.Close()
			go answer(ln, mine.Name)
			mine.Port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
			mine.Addresses, err = ownAddresses()
		}
	}
	all, err := share(ctx, job, mine, err)
	if err != nil {
		return meetingPlace{}, err
	}
	m := meetingPlace{listen: "127.0.0.1:0", at: "127.0.0.1", name: all[0].Name}
	if !apart {
		return m, nil
	}
	m.listen = ":0"
	m.at, err = reach(ctx, m.name, all[0].Port, all[0].Addresses)
	_, err = share(ctx, job, struct{}{}, err) // until then rank 0 answers
	return m, err
}

// ownAddresses lists where this host may be reached, the likely ones first.
func ownAddresses() (list []string, err error) {
	all, err := machine.Addresses()
	for _, a := range all {
		list = append(list, a.String())
	}
	return list, err
}

// answer tells a name to all who come, until the listener is closed.
func answer(ln net.Listener, name string) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(answerTime))
		_, _ = io.WriteString(conn, name)
		_ = conn.Close()
	}
}

// reach finds the address at which somebody answers with this name.
func reach(ctx context.Context, name, port string, addresses []string) (string, error) {
	var last error
	for _, a := range addresses {
		got, err := ask(ctx, net.JoinHostPort(a, port), len(name))
		switch {
		case err != nil:
			last = err
		case got != name:
			last = fmt.Errorf("somebody else is at %s", net.JoinHostPort(a, port))
		default:
			return a, nil
		}
	}
	return "", fmt.Errorf("rank 0 cannot be reached at %q: %w", addresses, last)
}

// ask reads the first bytes that are told at an address.
func ask(ctx context.Context, address string, bytes int) (string, error) {
	d := net.Dialer{Timeout: answerTime}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return "", err
	}
	b := make([]byte, bytes)
	_, err = io.ReadFull(conn, b)
	return string(b), err
}
